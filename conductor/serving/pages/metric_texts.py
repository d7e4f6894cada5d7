"""Every metric of the Conductor: its name, its kind, and what it means. docs/CONDUCTOR_METRICS.md says the same."""

PREFIX = "mooncask_conductor_"

COUNTERS = {
    "requests": "Requests that have ended, by how: stop, length, cancelled, failed, rejected.",
    "rejections": "Requests that were rejected early, by reason.",
    "quota_refusals": "Requests that were refused for their tenant's token quota.",
    "retries": "Attempts at requests beyond the first one.",
    "prompt_tokens": "Tokens of the prompts of requests that have ended.",
    "matched_tokens": "Tokens of those prompts that were found in a node's store when they were placed.",
    "cached_tokens": "Matched tokens whose KV was then loaded and not computed: what clients are told as cached.",
    "output_tokens": "Tokens of answers.",
    "decode_pauses": "Times that decode on a node stood still for a prefill there.",
    "decode_pause_seconds": "For how long it did.",
    "unanswered_lookups": "Questions to nodes for a prefix that were not answered in time.",
}
"""Exposed with _total behind the name."""

HISTOGRAMS = {
    "ttft_seconds": "Time to first token, from the received body to the first token at the Conductor.",
    "step_seconds": "Decode steps as workers report them.",
}

GAUGES = {
    "running_requests": "Requests that are being served.",
    "waiting_requests": "Requests that wait for a place to decode.",
    "workers": "Workers that answer, by model and role.",
    "prefill_queue_seconds": "Predicted time until a prefill worker has done what is placed on it.",
    "decode_slots": "Places to decode of a worker, used and free ones.",
    "ttft_prediction_error_ratio": "Mean of |predicted - happened| / happened of TTFT, over the last 2,000 requests.",
    "ttft_prediction_bias_ratio": "Mean of (predicted - happened) / happened of TTFT: above 0 predictions are too long.",
    "inline_ttft_prediction_error_ratio": "The same of requests whose prompt decode computed itself; the two above leave them out.",
    "inline_ttft_prediction_bias_ratio": "The same, with its sign.",
    "fetch_bytes_per_second": "What is reckoned with for loads of a worker from a tier, as learned.",
    "prefill_slowdown_ratio": "How many times longer a prefill takes beside a decoding batch on its node, as learned.",
    "step_prediction_error_ratio": "Mean of |predicted - happened| / happened of decode steps, over the last 2,000.",
    "quota_used_tokens": "Tokens that a tenant has used in the window, by tenant and window.",
    "quota_limit_tokens": "Tokens that a tenant may use in the window.",
}
