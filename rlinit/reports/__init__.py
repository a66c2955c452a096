"""Plans as pictures and pages: Gantt charts, figures, an HTML report."""
