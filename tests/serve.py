"""Serve an exported model as anybody would, without this program: python tests/serve.py EXPORT_DIR/VERSION DATA_DIR."""

import gzip
import json
import pathlib
import sys

import numpy as np
import tensorflow as tf


def read(data_dir, name, header_bytes):
    path = pathlib.Path(data_dir) / name
    content = path.read_bytes() if path.exists() else gzip.decompress(pathlib.Path(f"{path}.gz").read_bytes())
    return np.frombuffer(content, np.uint8, offset=header_bytes)


def classify_with_lite(version, images):
    """Convert the model for LiteRT, and return the classes that it finds."""
    interpreter = tf.lite.Interpreter(model_content=tf.lite.TFLiteConverter.from_saved_model(version).convert())
    return interpreter.get_signature_runner("serving_default")(images=images)["classes"]


def main():
    version, data_dir = sys.argv[1:]
    images = read(data_dir, "t10k-images-idx3-ubyte", 16).reshape(-1, 28, 28)
    labels = read(data_dir, "t10k-labels-idx1-ubyte", 8)
    outputs = tf.saved_model.load(version).signatures["serving_default"](images=tf.constant(images))
    classes, probabilities = (outputs[name].numpy() for name in ("classes", "probabilities"))
    served = {
        "accuracy": float((classes == labels).mean()),
        "shape": list(probabilities.shape),
        "sums_to_1": bool(np.allclose(probabilities.sum(axis=1), 1)),
        "lite_is_equal": bool((classify_with_lite(version, images) == classes).all()),
    }
    print(json.dumps(served))


if __name__ == "__main__":
    main()
