"""Parts of rlinit, measured one by one."""
