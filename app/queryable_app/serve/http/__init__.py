"""Speak HTTP/1.1: the strict parser, the limits on connections and bodies, and the fast lane for point reads.

The top room of a node: only the process's entry point imports it.
"""
