// SPDX-License-Identifier: Apache-2.0
//
// Fused attention computed on the CPU: what the kernels behind
// scaled_dot_product_attention compute on a device, on CPU tensors.
//
// Two algorithms. Where PyTorch's flash kernel for the CPU applies (no dropout,
// equal head sizes, no gradient of the bias) it is called: in float and double
// the numbers are then those of the same program on the CPU, bit for bit. Half
// precision is computed in float and rounded once. Everything else is the
// textbook form in float (double for double), whose scores live in host memory
// for the length of the call. Either way only what a device's kernel saves is
// returned: the output and one logsumexp per row, never the scores; the
// backward recomputes them.
//
// Dropout: the mask is drawn from `random`, a seed and an offset taken from the
// CUDA generator; the same pair draws the same mask again in the backward. The
// mask is not that of a real device.
//
// Thread-safety: functions without state. Errors: c10::Error.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_ATTENTION_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <optional>

#include "tests/simulator/cudasim/operator_bridge/generator.h"

namespace cudasim::bridge {

// All tensors are (batch, heads, length, head size), of any strides.
struct Attention {
  at::Tensor query;
  // Fewer heads than the query's: each serves a group of query heads.
  at::Tensor key;
  at::Tensor value;
  at::Tensor bias;  // added to the scores, broadcast; may be undefined
  double scale = 1;
  double dropout = 0;
  PhiloxState random;
  bool causal = false;
  // Causal: the last query sees the last key instead of the first the first.
  bool causal_from_end = false;
  // Keys a query sees to its left and right; -1: all of them.
  int64_t window_left = -1;
  int64_t window_right = -1;
};

struct AttentionResult {
  at::Tensor output;     // (batch, heads, length, head size of the value)
  at::Tensor logsumexp;  // (batch, heads, length), float
};

struct AttentionGradients {
  at::Tensor query, key, value;
  at::Tensor bias;  // defined if asked for; in the bias's own sizes
};

// The scale of a call that gives none: 1 / sqrt(head size).
double AttentionScale(const std::optional<double>& given,
                      const at::Tensor& query);

AttentionResult ComputeAttention(const Attention& attention);

AttentionGradients ComputeAttentionGradients(const Attention& attention,
                                             const at::Tensor& grad_output,
                                             const AttentionResult& forward,
                                             bool bias_gradient);

}  // namespace cudasim::bridge

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_OPERATOR_BRIDGE_ATTENTION_H_
