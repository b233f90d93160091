"""Clusters that a program leads itself."""
