"""Summaries of a serving run from its request records: latencies by percentile, throughputs, and two runs side by side."""

from .records import BadRequests, Request, read
from .summary import LATENCIES, Common, Metric, Summary, summarise
from .tables import change_tables, summary_tables

__all__ = ["LATENCIES", "BadRequests", "Common", "Metric", "Request", "Summary", "change_tables", "read", "summarise", "summary_tables"]
