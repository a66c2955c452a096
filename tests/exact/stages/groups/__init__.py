"""Stages of several devices."""
