"""Environments of other libraries behind our protocol: Gymnasium's text environments, and `verifiers`.

Neither library is imported before it is used, and neither is needed by anything else here.
"""
