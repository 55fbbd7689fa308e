"""Processes behind the ranks: how engines are started, watched and ended."""
