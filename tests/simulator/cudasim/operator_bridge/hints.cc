// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/hints.h"

#include <array>

namespace cudasim::bridge {
namespace {

struct Hint {
  std::string_view prefix;  // the first that fits counts
  std::string_view text;
};

constexpr std::array<Hint, 17> kHints = {{
    {"aten::_scaled_grouped_mm",
     "Compute the groups one by one with torch._scaled_mm, which runs here."},
    {"aten::_scaled_mm_v2",
     "torch._scaled_mm with scales per tensor or row runs here; block scales "
     "do not."},
    {"aten::_weight_int4pack_mm",
     "Dequantize the weight and use a plain product; int8 weights "
     "(torch._weight_int8pack_mm) run here."},
    {"aten::_convert_weight_to_int4pack",
     "The packed layout is the device's own. Keep the weight unpacked, or use "
     "int8 weights (torch._weight_int8pack_mm), which run here."},
    {"aten::_mixed_dtypes_linear",
     "Convert the weight to the type of the input and use "
     "torch.nn.functional.linear."},
    {"aten::_cslt_",
     "Use the dense weight: semi-structured sparsity is a "
     "matter of the device's own matrix units."},
    {"aten::_sparse_semi_structured",
     "Use the dense weight: semi-structured sparsity is a matter of the "
     "device's own matrix units."},
    {"aten::_to_sparse_semi_structured",
     "Use the dense weight: semi-structured sparsity is a matter of the "
     "device's own matrix units."},
    {"aten::_scaled_dot_product_flash_attention.quantized",
     "Convert query, key and value to bfloat16 or float16; the plain flash "
     "form runs here."},
    {"aten::_flash_attention_forward.quantized",
     "Convert query, key and value to bfloat16 or float16; the plain flash "
     "form runs here."},
    {"aten::_cudnn_attention",
     "Use scaled_dot_product_attention: its cuDNN form runs here, packed "
     "sequences excepted."},
    {"aten::_triton_",
     "Use scaled_dot_product_attention: all its forms run here."},
    {"aten::_fill_mem_eff_dropout_mask_",
     "The mask of a device's kernel is not reproduced here; draw one with "
     "torch.bernoulli."},
    {"aten::miopen_",
     "It belongs to AMD devices: call the operator without "
     "the prefix, or the cudnn_ one."},
    {"aten::_use_miopen", "It belongs to AMD devices."},
    {"aten::miopen", "It belongs to AMD devices."},
    {"aten::_cudnn_ctc_loss",
     "torch.nn.functional.ctc_loss chooses the native form here."},
}};

}  // namespace

std::string_view HintFor(std::string_view name) {
  for (const Hint& hint : kHints) {
    if (name.substr(0, hint.prefix.size()) == hint.prefix) return hint.text;
  }
  if (name.size() > 4 && name.substr(name.size() - 4) == "_out") {
    return "Call the form without out=, which may run here, and copy.";
  }
  return "Write it with operators that PyTorch also has for the CPU, or run it "
         "on a real GPU.";
}

}  // namespace cudasim::bridge
