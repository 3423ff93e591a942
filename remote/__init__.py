"""Tune SGLang on a GPU host over SSH."""
