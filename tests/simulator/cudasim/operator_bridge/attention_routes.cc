// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/operator_bridge/attention_routes.h"

#include <ATen/ATen.h>

#include <vector>

#include "tests/simulator/cudasim/operator_bridge/arguments.h"
#include "tests/simulator/cudasim/operator_bridge/attention.h"

namespace cudasim::bridge {
namespace {

using at::Tensor;
using torch::jit::Stack;

constexpr char kMaskInstead[] =
    "mask the scores instead (attn_mask of scaled_dot_product_attention)";

// --- Random state as tensors -------------------------------------------------

uint64_t ReadWord(const Tensor& tensor, int64_t index) {
  if (!tensor.defined() || tensor.numel() <= index) return 0;
  return static_cast<const uint64_t*>(tensor.const_data_ptr())[index];
}

Tensor Word(uint64_t value, c10::ScalarType type) {
  Tensor tensor = at::zeros({}, type);
  std::memcpy(tensor.mutable_data_ptr(), &value, sizeof(value));
  return tensor;
}

// The flash kernels': one tensor of two words.
Tensor PairOfWords(const PhiloxState& random) {
  Tensor tensor = at::zeros({2}, c10::kUInt64);
  const uint64_t words[2] = {random.seed, random.offset};
  std::memcpy(tensor.mutable_data_ptr(), words, sizeof(words));
  return tensor;
}

// The device's kernels advance the generator by these amounts.
PhiloxState TakeForFlash(const Attention& a, c10::DeviceIndex device) {
  if (a.dropout == 0) return {};
  return TakePhilox(std::nullopt, device,
                    a.query.size(0) * a.query.size(1) * 32);
}

PhiloxState TakeForScores(const Attention& a, c10::DeviceIndex device) {
  if (a.dropout == 0) return {};
  return TakePhilox(
      std::nullopt, device,
      a.query.size(0) * a.query.size(1) * a.query.size(2) * a.key.size(2));
}

// The efficient kernel's rows of logsumexp are padded to a multiple of 32; none
// are kept for a forward without gradient.
Tensor PadRows(const Tensor& logsumexp, bool wanted) {
  auto sizes = logsumexp.sizes().vec();
  const int64_t rows = sizes[2];
  sizes[2] = wanted ? (rows + 31) / 32 * 32 : 0;
  Tensor padded = at::full(sizes, std::numeric_limits<float>::infinity(),
                           logsumexp.options());
  if (wanted) padded.narrow(2, 0, rows).copy_(logsumexp);
  return padded;
}

// --- scaled_dot_product_attention
// ---------------------------------------------

Attention SdpaArguments(const Arguments& in, size_t query, size_t bias) {
  Attention a;
  a.query = in.TensorAt(query);
  a.key = in.TensorAt(query + 1);
  a.value = in.TensorAt(query + 2);
  if (bias != 0) a.bias = in.TensorAt(bias);
  return a;
}

AttentionResult ForwardOf(const Tensor& output, const Tensor& logsumexp,
                          const Attention& a) {
  return {output, logsumexp.narrow(2, 0, a.query.size(2)).contiguous()};
}

}  // namespace

// (query, key, value, dropout_p, is_causal, return_debug_mask, scale)
void SdpaFlash(const c10::OperatorHandle& op, Stack* stack,
               c10::DeviceIndex device) {
  const Arguments in(op, stack);
  Attention a = SdpaArguments(in, 0, 0);
  a.dropout = in[3].toDouble();
  a.causal = in[4].toBool();
  a.scale = AttentionScale(in.NumberAt(6), a.query);
  a.random = TakeForFlash(a, device);
  const AttentionResult result = ComputeAttention(a);
  torch::jit::push(*stack, result.output, result.logsumexp.contiguous(),
                   Tensor(), Tensor(), a.query.size(2), a.key.size(2),
                   PairOfWords(a.random), Word(0, c10::kUInt64),
                   at::empty({0}, a.query.options()));
}

// (grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q,
//  max_k, dropout_p, is_causal, philox_seed, philox_offset, scale)
void SdpaFlashBackward(const c10::OperatorHandle& op, Stack* stack,
                       c10::DeviceIndex) {
  const Arguments in(op, stack);
  Attention a = SdpaArguments(in, 1, 0);
  a.dropout = in[10].toDouble();
  a.causal = in[11].toBool();
  a.random = {ReadWord(in.TensorAt(12), 0), ReadWord(in.TensorAt(12), 1)};
  a.scale = AttentionScale(in.NumberAt(14), a.query);
  const auto gradients = ComputeAttentionGradients(
      a, in.TensorAt(0), {in.TensorAt(4), in.TensorAt(5)}, false);
  torch::jit::push(*stack, gradients.query, gradients.key, gradients.value);
}

// (query, key, value, attn_bias?, compute_log_sumexp, dropout_p, is_causal,
//  scale)
void SdpaEfficient(const c10::OperatorHandle& op, Stack* stack,
                   c10::DeviceIndex device) {
  const Arguments in(op, stack);
  Attention a = SdpaArguments(in, 0, 3);
  a.dropout = in[5].toDouble();
  a.causal = in[6].toBool();
  a.scale = AttentionScale(in.NumberAt(7), a.query);
  a.random = TakeForScores(a, device);
  const AttentionResult result = ComputeAttention(a);
  torch::jit::push(
      *stack, result.output, PadRows(result.logsumexp, in[4].toBool()),
      Word(a.random.seed, c10::kLong), Word(a.random.offset, c10::kLong));
}

// (grad_out, query, key, value, attn_bias, out, logsumexp, philox_seed,
//  philox_offset, dropout_p, grad_input_mask, is_causal, scale)
void SdpaEfficientBackward(const c10::OperatorHandle& op, Stack* stack,
                           c10::DeviceIndex) {
  const Arguments in(op, stack);
  if (!in.TensorAt(0).defined()) {
    torch::jit::push(*stack, Tensor(), Tensor(), Tensor(), Tensor());
    return;
  }
  Attention a = SdpaArguments(in, 1, 4);
  a.random = {ReadWord(in.TensorAt(7), 0), ReadWord(in.TensorAt(8), 0)};
  a.dropout = in[9].toDouble();
  const auto wanted = in[10].toBoolList();
  a.causal = in[11].toBool();
  a.scale = AttentionScale(in.NumberAt(12), a.query);
  const auto gradients = ComputeAttentionGradients(
      a, in.TensorAt(0), ForwardOf(in.TensorAt(5), in.TensorAt(6), a),
      wanted[3]);
  torch::jit::push(*stack, gradients.query, gradients.key, gradients.value,
                   gradients.bias);
}

// (query, key, value, attn_bias?, compute_log_sumexp, dropout_p, is_causal,
//  return_debug_mask, scale)
void SdpaCudnn(const c10::OperatorHandle& op, Stack* stack,
               c10::DeviceIndex device) {
  const Arguments in(op, stack);
  Attention a = SdpaArguments(in, 0, 3);
  a.dropout = in[5].toDouble();
  a.causal = in[6].toBool();
  a.scale = AttentionScale(in.NumberAt(8), a.query);
  a.random = TakeForScores(a, device);
  const AttentionResult result = ComputeAttention(a);
  const Tensor logsumexp =
      in[4].toBool() ? result.logsumexp.contiguous().unsqueeze(3) : Tensor();
  torch::jit::push(*stack, result.output, logsumexp, Tensor(), Tensor(),
                   a.query.size(2), a.key.size(2),
                   Word(a.random.seed, c10::kLong),
                   Word(a.random.offset, c10::kLong), Tensor());
}

// (grad_out, query, key, value, out, logsumexp, philox_seed, philox_offset,
//  attn_bias, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, scale)
void SdpaCudnnBackward(const c10::OperatorHandle& op, Stack* stack,
                       c10::DeviceIndex) {
  const Arguments in(op, stack);
  Attention a = SdpaArguments(in, 1, 8);
  a.random = {ReadWord(in.TensorAt(6), 0), ReadWord(in.TensorAt(7), 0)};
  a.dropout = in[13].toDouble();
  a.causal = in[14].toBool();
  a.scale = AttentionScale(in.NumberAt(15), a.query);
  const auto gradients = ComputeAttentionGradients(
      a, in.TensorAt(0),
      {in.TensorAt(4), in.TensorAt(5).squeeze(3).contiguous()}, false);
  torch::jit::push(*stack, gradients.query, gradients.key, gradients.value);
}

// --- Called directly: (batch, length, heads, size), or packed sequences
// --------

namespace {

// Where sequences start in packed tensors; empty for dense ones.
std::vector<int64_t> Starts(const Tensor& cumulative) {
  if (!cumulative.defined()) return {};
  const Tensor longs = cumulative.to(c10::kLong).contiguous();
  return {longs.data_ptr<int64_t>(), longs.data_ptr<int64_t>() + longs.numel()};
}

// Walks the sequences of a call: `a` holds whole tensors in the caller's layout
// (4 dimensions, or 3 when packed), each sequence is handed on in
// attention.h's.
class Sequences {
 public:
  Sequences(const Attention& whole, const Tensor& starts_q,
            const Tensor& starts_k)
      : whole_(whole),
        starts_q_(Starts(starts_q)),
        starts_k_(Starts(starts_k)) {}

  bool packed() const { return !starts_q_.empty(); }
  size_t count() const { return packed() ? starts_q_.size() - 1 : 1; }

  Attention At(size_t i) const {
    Attention a = whole_;
    a.query = Queries(whole_.query, i);
    a.key = Part(whole_.key, starts_k_, i);
    a.value = Part(whole_.value, starts_k_, i);
    // Sequences of one call draw different masks.
    a.random.offset += packed() ? i : 0;
    return a;
  }
  // The part of a tensor shaped as the queries (or keys) of sequence i: a view.
  Tensor Queries(const Tensor& tensor, size_t i) const {
    return Part(tensor, starts_q_, i);
  }
  Tensor Keys(const Tensor& tensor, size_t i) const {
    return Part(tensor, starts_k_, i);
  }
  // Its rows of a (heads, total) or (batch, heads, length) logsumexp.
  Tensor Rows(const Tensor& logsumexp, size_t i) const {
    if (!packed()) return logsumexp;
    return logsumexp.narrow(1, starts_q_[i], starts_q_[i + 1] - starts_q_[i])
        .unsqueeze(0);
  }

 private:
  Tensor Part(const Tensor& tensor, const std::vector<int64_t>& starts,
              size_t i) const {
    if (!packed()) return tensor.transpose(1, 2);
    Tensor t = tensor.dim() == 4 ? tensor.squeeze(0) : tensor;
    return t.narrow(0, starts[i], starts[i + 1] - starts[i])
        .unsqueeze(0)
        .transpose(1, 2);
  }

  const Attention& whole_;
  const std::vector<int64_t> starts_q_, starts_k_;
};

AttentionResult ForwardOfSequences(const Attention& whole,
                                   const Sequences& sequences) {
  if (!sequences.packed()) {
    const AttentionResult result = ComputeAttention(sequences.At(0));
    return {result.output.transpose(1, 2), result.logsumexp.contiguous()};
  }
  auto sizes = whole.query.sizes().vec();
  sizes.back() = whole.value.size(-1);
  const int64_t heads = whole.query.size(-2);
  const int64_t total = whole.query.size(-3);
  AttentionResult all{
      at::zeros(sizes, whole.query.options()),
      at::zeros({heads, total}, whole.query.options().dtype(c10::kFloat))};
  for (size_t i = 0; i < sequences.count(); ++i) {
    const Attention a = sequences.At(i);
    if (a.query.size(2) == 0) continue;
    const AttentionResult one = ComputeAttention(a);
    sequences.Queries(all.output, i).copy_(one.output);
    sequences.Rows(all.logsumexp, i).copy_(one.logsumexp);
  }
  return all;
}

AttentionGradients GradientsOfSequences(const Attention& whole,
                                        const Sequences& sequences,
                                        const Tensor& grad_output,
                                        const AttentionResult& forward,
                                        bool bias_gradient) {
  AttentionGradients all{at::zeros_like(whole.query), at::zeros_like(whole.key),
                         at::zeros_like(whole.value), Tensor()};
  for (size_t i = 0; i < sequences.count(); ++i) {
    const Attention a = sequences.At(i);
    if (a.query.size(2) == 0) continue;
    const AttentionGradients one =
        ComputeAttentionGradients(a, sequences.Queries(grad_output, i),
                                  {sequences.Queries(forward.output, i),
                                   sequences.Rows(forward.logsumexp, i)
                                       .narrow(2, 0, a.query.size(2))
                                       .contiguous()},
                                  bias_gradient);
    sequences.Queries(all.query, i).copy_(one.query);
    sequences.Keys(all.key, i).copy_(one.key);
    sequences.Keys(all.value, i).copy_(one.value);
    if (bias_gradient) {
      all.bias = all.bias.defined() ? all.bias + one.bias : one.bias;
    }
  }
  return all;
}

}  // namespace

// (query, key, value, cum_seq_q?, cum_seq_k?, max_q, max_k, dropout_p,
//  is_causal, return_debug_mask, scale, window_left?, window_right?,
//  seqused_k?, alibi_slopes?)
void FlashForward(const c10::OperatorHandle& op, Stack* stack,
                  c10::DeviceIndex device) {
  const Arguments in(op, stack);
  in.RefuseGiven(13, "seqused_k", kMaskInstead);
  in.RefuseGiven(14, "alibi_slopes", kMaskInstead);
  Attention a = SdpaArguments(in, 0, 0);
  a.dropout = in[7].toDouble();
  a.causal = in[8].toBool();
  a.causal_from_end = true;
  a.scale = AttentionScale(in.NumberAt(10), a.query);
  a.window_left = in.IntAt(11, -1);
  a.window_right = in.IntAt(12, -1);
  if (a.dropout > 0) {
    const int64_t batch =
        in.TensorAt(3).defined() ? in.TensorAt(3).numel() - 1 : a.query.size(0);
    a.random = TakePhilox(std::nullopt, device, batch * a.query.size(-2) * 32);
  }
  const Sequences sequences(a, in.TensorAt(3), in.TensorAt(4));
  const AttentionResult result = ForwardOfSequences(a, sequences);
  torch::jit::push(*stack, result.output, result.logsumexp,
                   PairOfWords(a.random), Word(0, c10::kUInt64),
                   at::empty({0}, a.query.options()));
}

// (grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q,
//  max_k, dropout_p, is_causal, rng_state, unused, scale, window_left?,
//  window_right?)
void FlashBackward(const c10::OperatorHandle& op, Stack* stack,
                   c10::DeviceIndex) {
  const Arguments in(op, stack);
  Attention a = SdpaArguments(in, 1, 0);
  a.dropout = in[10].toDouble();
  a.causal = in[11].toBool();
  a.causal_from_end = true;
  a.random = {ReadWord(in.TensorAt(12), 0), ReadWord(in.TensorAt(12), 1)};
  a.scale = AttentionScale(in.NumberAt(14), a.query);
  a.window_left = in.IntAt(15, -1);
  a.window_right = in.IntAt(16, -1);
  const Sequences sequences(a, in.TensorAt(6), in.TensorAt(7));
  const auto gradients = GradientsOfSequences(
      a, sequences, in.TensorAt(0), {in.TensorAt(4), in.TensorAt(5)}, false);
  torch::jit::push(*stack, gradients.query, gradients.key, gradients.value);
}

namespace {

// 0: none, 1: from the top left, 2: from the bottom right.
void SetMaskType(Attention& a, int64_t type) {
  a.causal = type != 0;
  a.causal_from_end = type == 2;
}

void SetWindow(Attention& a, int64_t window) {
  if (window > 0) a.window_left = window - 1;
}

}  // namespace

// (query, key, value, bias?, cu_seqlens_q?, cu_seqlens_k?, max_seqlen_q?,
//  max_seqlen_k?, dropout_p, custom_mask_type, compute_log_sumexp, scale,
//  seqlen_k?, window_size?)
void EfficientForward(const c10::OperatorHandle& op, Stack* stack,
                      c10::DeviceIndex device) {
  const Arguments in(op, stack);
  in.RefuseGiven(12, "seqlen_k", kMaskInstead);
  Attention a = SdpaArguments(in, 0, 3);
  a.dropout = in[8].toDouble();
  SetMaskType(a, in[9].toInt());
  a.scale = AttentionScale(in.NumberAt(11), a.query);
  SetWindow(a, in.IntAt(13, -1));
  const int64_t max_q = in.IntAt(6, a.query.size(1));
  const int64_t max_k = in.IntAt(7, a.key.size(1));
  const Sequences sequences(a, in.TensorAt(4), in.TensorAt(5));
  if (a.dropout > 0) {
    a.random =
        TakePhilox(std::nullopt, device,
                   static_cast<int64_t>(sequences.count()) * a.query.size(0) *
                       a.query.size(2) * max_q * max_k);
  }
  AttentionResult result = ForwardOfSequences(a, sequences);
  if (sequences.packed()) {
    // One row of padded sequences each, as the kernel lays them out.
    Tensor rows = at::zeros(
        {static_cast<int64_t>(sequences.count()), a.query.size(-2), max_q},
        result.logsumexp.options());
    for (size_t i = 0; i < sequences.count(); ++i) {
      const Tensor one = sequences.Rows(result.logsumexp, i);
      rows[i].narrow(1, 0, one.size(2)).copy_(one[0]);
    }
    result.logsumexp = rows;
  }
  torch::jit::push(*stack, result.output,
                   PadRows(result.logsumexp, in[10].toBool()),
                   Word(a.random.seed, c10::kLong),
                   Word(a.random.offset, c10::kLong), max_q, max_k);
}

// (grad_out, query, key, value, bias?, out, cu_seqlens_q?, cu_seqlens_k?,
//  max_seqlen_q, max_seqlen_k, logsumexp, dropout_p, philox_seed,
//  philox_offset, custom_mask_type, bias_requires_grad, scale, num_splits_key?,
//  window_size?, shared_storage_dqdkdv)
void EfficientBackward(const c10::OperatorHandle& op, Stack* stack,
                       c10::DeviceIndex) {
  const Arguments in(op, stack);
  Attention a = SdpaArguments(in, 1, 4);
  a.dropout = in[11].toDouble();
  a.random = {ReadWord(in.TensorAt(12), 0), ReadWord(in.TensorAt(13), 0)};
  SetMaskType(a, in[14].toInt());
  a.scale = AttentionScale(in.NumberAt(16), a.query);
  SetWindow(a, in.IntAt(18, -1));
  const Sequences sequences(a, in.TensorAt(6), in.TensorAt(7));
  Tensor logsumexp = in.TensorAt(10);
  if (sequences.packed()) {
    // Back from one padded row per sequence to one long row.
    std::vector<Tensor> parts;
    for (size_t i = 0; i < sequences.count(); ++i) {
      parts.push_back(logsumexp[i].narrow(1, 0, sequences.At(i).query.size(2)));
    }
    logsumexp = at::cat(parts, 1);
  }
  const auto gradients =
      GradientsOfSequences(a, sequences, in.TensorAt(0),
                           {in.TensorAt(5), logsumexp}, in[15].toBool());
  torch::jit::push(*stack, gradients.query, gradients.key, gradients.value,
                   gradients.bias);
}

}  // namespace cudasim::bridge
