"""Adapters, one file for each vendor."""

import os

# ONNX Runtime reads it as it loads. Without it, the runtime makes an id of the device in the user's home folder and reports to
# its maker.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
