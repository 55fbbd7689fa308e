"""What several test files share: kernels, ranks, browsers, and the logs of others."""
