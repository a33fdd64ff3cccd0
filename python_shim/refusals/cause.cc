// SPDX-License-Identifier: Apache-2.0
#include "python_shim/refusals/cause.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "accounting/scope_text.h"

namespace stratalloc {
namespace {

using Tiering = RefusalFacts::Tiering;

constexpr std::uint32_t Bit(Category category) {
  return std::uint32_t{1} << Raw(category);
}
constexpr std::uint32_t kActivations =
    Bit(Category::kActivation) | Bit(Category::kTemporary);
constexpr std::uint32_t kWeights =
    Bit(Category::kParameter) | Bit(Category::kBuffer);
// What tiering can move between two uses.
constexpr std::uint32_t kMovable =
    kWeights | Bit(Category::kGradient) | Bit(Category::kOptimizerState);

struct Group {
  std::uint32_t categories;
  const char* holders;
  const char* remedy;
};
constexpr Group kGroups[] = {
    {kActivations, "activations",
     "reduce the batch size or use torch.utils.checkpoint"},
    {kWeights, "parameters and buffers",
     "use a smaller model, a smaller dtype or a larger GPU"},
    {Bit(Category::kGradient), "gradients",
     "use a smaller model, a smaller dtype or a larger GPU"},
    {Bit(Category::kOptimizerState), "optimizer states",
     "use an optimizer with less state, or a larger GPU"},
    {Bit(Category::kInput), "inputs",
     "reduce the batch size, or move one batch at a time to the GPU"},
    {Bit(Category::kWorkspace), "library workspaces",
     "reduce the batch size or use a larger GPU"},
    {Bit(Category::kUnknown), "tensors outside of modules",
     "delete those that are no longer needed, or move them to the CPU"},
};

// What no eviction takes, but for activations.
struct Stay {
  StayReason reason;
  const char* holders;
  const char* remedy;
};
constexpr Stay kStays[] = {
    {StayReason::kPrivatePool, "CUDA graphs and MemPools",
     "reset graphs and delete pools that are no longer needed"},
    {StayReason::kRaw, "blocks without a tensor (caching_allocator_alloc)",
     "return them with caching_allocator_delete"},
    {StayReason::kWorkspace, "library workspaces",
     "reduce the batch size or use a larger GPU"},
    {StayReason::kShared, "tensors shared with other processes",
     "delete those that are no longer needed, here and there"},
    {StayReason::kExported,
     "tensors exported to other libraries (DLPack, __cuda_array_interface__)",
     "delete exports that are no longer needed"},
    {StayReason::kProgram, "pinned tensors",
     "take pins back (stratalloc.unpin) where a tensor may leave the GPU"},
    {StayReason::kRule, "tensors that a rule keeps on the GPU",
     "change the rule"},
    {StayReason::kGraph, "tensors that captured CUDA graphs read",
     "reset graphs that are no longer needed"},
    {StayReason::kCollective, "tensors of unfinished collectives",
     "wait for these before more is allocated"},
    {StayReason::kOperator, "tensors of the running operator",
     "use a smaller batch, or split the layer"},
};

template <typename T>
Trial With(T Trial::*field, T value) {
  Trial trial;
  trial.*field = value;
  return trial;
}

struct Held {
  std::string holders;
  std::string remedy;
  Bytes bytes = 0;
  std::uint32_t categories = 0;  // 0: of a reason, whatever the category
};

std::string Capital(std::string text) {
  if (!text.empty()) {
    text[0] =
        static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  }
  return text;
}

class Cause {
 public:
  Cause(const RefusalFacts& facts, const TryAgain& again)
      : facts_(facts), again_(again) {}

  // The first that holds, from what no other remedy changes to what always
  // holds.
  std::string Text() {
    if (facts_.asked > facts_.parts.card.total) return TooLarge();
    if (facts_.asked > facts_.parts.allowed) return LargerThanLimit();
    base_ = again_(Trial{});
    for (const auto rule :
         {&Cause::TiersFull, &Cause::Pending, &Cause::CameFree, &Cause::Limited,
          &Cause::PrivatePools, &Cause::Fragmented, &Cause::Others}) {
      if (std::string text = (this->*rule)(); !text.empty()) return text;
    }
    return Live();
  }

 private:
  bool Helps(const Trial& trial) const { return again_(trial).served; }
  const Fragmentation& held() const { return facts_.parts.held; }
  // What this allocator can have of the card.
  Bytes There() const {
    return std::min(facts_.parts.allowed,
                    facts_.parts.ours + facts_.parts.card.free);
  }
  // "The tensor is", "Its operands, in whole pages, are".
  std::string Subject() const {
    return facts_.is_operator ? "Its operands, in whole pages, are"
                              : "The tensor is";
  }
  // A fraction is of gpu_limit where that is set, so it limits wherever it is.
  bool FractionLimits() const { return facts_.parts.fraction < 1.0; }
  const char* LimitName() const {
    return FractionLimits() ? "the memory fraction" : "gpu_limit";
  }
  // For `wanted` bytes in all.
  std::string RaiseLimit(Bytes wanted) const {
    if (!FractionLimits()) return "raise gpu_limit";
    const bool both = facts_.gpu_limit != 0 && wanted > facts_.gpu_limit;
    return std::string(
               "raise it with "
               "torch.cuda.set_per_process_memory_fraction()") +
           (both ? " and raise gpu_limit" : "");
  }

  std::string TooLarge() const {
    return Subject() +
           " larger than the card: use a smaller batch, a smaller dtype or "
           "smaller parts. No setting helps.";
  }
  std::string LargerThanLimit() const {
    return Subject() + " larger than " + LimitName() + " allows, " +
           FormatBytes(facts_.parts.allowed) + ": " + RaiseLimit(facts_.asked) +
           ", or use a smaller batch, dtype or parts.";
  }
  std::string TiersFull() const {
    if (facts_.tiering != Tiering::kOn || base_.served) return "";
    if (facts_.room_lacking == 0 &&
        !Helps(With(&Trial::more_room, facts_.parts.card.total))) {
      return "";
    }
    const Held most = Largest();
    const std::string held =
        most.bytes == 0 ? "Eviction needs "
                        : Capital(most.holders) + " hold " +
                              FormatBytes(most.bytes) + ", and eviction needs ";
    return held +
           (facts_.room_lacking == 0
                ? std::string("more room")
                : "at least " + FormatBytes(facts_.room_lacking) + " more") +
           " in host memory or on disk: raise host_budget or disk_budget.";
  }
  std::string Pending() const {
    if (base_.served || held().pending == 0 ||
        !Helps(With(&Trial::streams_end, true))) {
      return "";
    }
    return FormatBytes(held().pending) +
           " are freed but still in use by other streams" +
           (facts_.parts.capturing
                ? " until the capture of a CUDA graph ends: free them before "
                  "the capture, or use fewer streams in it."
                : ": call torch.cuda.synchronize() first.");
  }
  std::string CameFree() const {
    if (!base_.served) return "";
    return "The same request would be served now: try again. If it is refused "
           "again, the driver or a MemPool's own allocator refuses it.";
  }
  std::string Limited() const {
    const MemoryParts& parts = facts_.parts;
    if (parts.allowed >= parts.card.total || base_.missing == 0 ||
        !Helps(With(&Trial::more_limit, base_.missing))) {
      return "";
    }
    const Held most = Most();
    // A setting keeps its name.
    const std::string limit =
        FractionLimits() ? Capital(LimitName()) : LimitName();
    const std::string text =
        limit + " allows " + FormatBytes(parts.allowed) + " of the card";
    const std::string raise = RaiseLimit(parts.allowed + base_.missing);
    if (most.bytes == 0) return text + ": " + raise + ".";
    return text + ", and " + most.holders + " hold " + FormatBytes(most.bytes) +
           ": " + raise + ", or " + most.remedy + "." + Rest(most);
  }
  std::string PrivatePools() const {
    if (held().in_private_pools == 0 || !Helps(With(&Trial::pools_end, true)))
      return "";
    return "CUDA graphs and MemPools keep " +
           FormatBytes(held().in_private_pools) +
           " free for their own use: reset graphs and delete pools that are no "
           "longer needed.";
  }
  std::string Fragmented() const {
    // An operator's operands lie in whole handles.
    if (facts_.is_operator) return "";
    const Bytes live = held().allocated + held().pending;
    const bool nothing_leaves =
        facts_.parts.capturing || facts_.tiering != Tiering::kOn;
    for (const Bytes stays : {nothing_leaves ? live : facts_.staying, live}) {
      const Bytes kept = stays + held().in_private_pools;
      if (kept + facts_.asked > There()) continue;
      // Next to full, the holders are the cause and not the last pieces.
      if (4 * (There() - kept) < There()) continue;
      return FormatBytes(There() - kept) + " are free, but in pieces between " +
             Between();
    }
    return "";
  }
  // Whose tensors keep the pieces apart, and what to do about it.
  std::string Between() const {
    std::map<std::pair<ScopeId, Category>, Bytes> owners;
    for (const Hole& hole : held().holes) {
      const Charge& charge = hole.oldest.charge;
      owners[{charge.scope, charge.category}] += hole.free;
    }
    const auto most = std::max_element(
        owners.begin(), owners.end(),
        [](const auto& a, const auto& b) { return a.second < b.second; });
    std::string whose = "small live tensors";
    if (most != owners.end() && most->first.first != kRootScope) {
      whose = "live tensors of " + ScopeText(most->first.first);
    }
    if (most != owners.end() && (Bit(most->first.second) & kMovable) != 0) {
      // A layer's own parameters are there before its request.
      if (most->first.first != kRootScope && most->first.first == facts_.asks) {
        return whose +
               ", which also makes this request: use a larger GPU, or layers "
               "of other sizes.";
      }
      return whose +
             ": create the model and its optimizer before other large "
             "tensors.";
    }
    return whose +
           ": create these before the large tensors, join them in one "
           "tensor, or keep them on the CPU.";
  }
  std::string Others() const {
    const MemoryParts& parts = facts_.parts;
    const Bytes ours = std::max(parts.ours, held().reserved);
    const Bytes used =
        parts.card.total - std::min(parts.card.total, parts.card.free);
    const Bytes beside = used - std::min(used, ours);
    if (beside <= held().allocated || !Helps(With(&Trial::more_card, beside)))
      return "";
    Bytes own = 0, others = 0;
    bool knows_own = false;
    for (const ProcessMemory& process : facts_.processes) {
      if (process.pid == facts_.own_pid) {
        knows_own = true;
        own += process.bytes - std::min(process.bytes, ours);
      } else {
        others += process.bytes;
      }
    }
    const std::string remedy =
        ": end those (nvidia-smi lists them), choose another GPU with "
        "CUDA_VISIBLE_DEVICES, or reduce the batch size.";
    if (!knows_own) {
      return FormatBytes(beside) +
             " of the card are held by other processes, or by libraries of "
             "this one outside of PyTorch" +
             remedy;
    }
    if (others >= own) {
      return "Other processes hold more of the card than PyTorch here" + remedy;
    }
    return "Libraries of this process hold " + FormatBytes(beside) +
           " of the card outside of PyTorch: release it there.";
  }

  // Who holds most of what stays on the device.
  Held Most() const {
    if (facts_.tiering == Tiering::kOn && !facts_.parts.capturing) {
      Held most;
      for (const Stay& stay : kStays) {
        const Bytes bytes = facts_.stays.of(stay.reason);
        if (bytes > most.bytes) most = {stay.holders, stay.remedy, bytes, 0};
      }
      const Bytes activations = facts_.stays.of(StayReason::kActivation);
      if (activations < most.bytes) return most;
      if (activations > 0) {
        return {kGroups[0].holders, kGroups[0].remedy, activations,
                kActivations};
      }
      return most;
    }
    return Largest();
  }
  // The group with most bytes on the device, whether it stays or not.
  Held Largest() const {
    Held most;
    for (const Group& group : kGroups) {
      const Bytes bytes = Of(group.categories);
      if (bytes > most.bytes) {
        most = {group.holders, group.remedy, bytes, group.categories};
      }
    }
    return most;
  }
  Bytes Of(std::uint32_t categories) const {
    Bytes bytes = 0;
    for (const RefusalFacts::Holder& holder : facts_.holders) {
      if ((Bit(holder.category) & categories) != 0) bytes += holder.bytes;
    }
    return bytes;
  }

  std::string Live() const {
    const Held most = Most();
    std::string text;
    if (facts_.asked >= most.bytes) {
      text = facts_.is_operator ? "Its operands are" : "The tensor is";
      text += " the largest part";
      if (most.bytes > 0) {
        text += ", and " + most.holders + " hold " + FormatBytes(most.bytes) +
                (facts_.is_operator ? " beside them" : " beside it");
      }
      text += ": use a smaller batch, a smaller dtype or smaller parts.";
      return text + Rest(most);
    }
    std::string remedy = most.remedy;
    if (TieringHelps() && (most.categories & kMovable) != 0) {
      remedy =
          "set tiering:on, which moves them to host memory while they are "
          "not used, or " +
          remedy;
    }
    return Capital(most.holders) + " hold " + FormatBytes(most.bytes) + ": " +
           remedy + "." + Rest(most);
  }
  // Would what tiering can move be enough?
  bool TieringHelps() const {
    return facts_.tiering == Tiering::kOff && facts_.tiers_below &&
           base_.missing > 0 && Of(kMovable) >= base_.missing;
  }
  // The sentences behind the cause.
  std::string Rest(const Held& most) const {
    std::string text;
    if (most.categories == kActivations) {
      text +=
          " Without a backward pass, use torch.no_grad(); keep a loss as "
          "loss.item().";
    }
    if (facts_.tiering == Tiering::kOff && !facts_.tiers_below) {
      text += " host_budget and disk_budget are 0: nothing was evicted";
      text += base_.missing > 0 && Of(kMovable) >= base_.missing
                  ? "; with one of them parameters and optimizer state leave."
                  : ".";
    } else if (facts_.tiering == Tiering::kOff) {
      text += " Tiering is off: nothing was evicted";
      text += TieringHelps() && (most.categories & kMovable) == 0
                  ? "; tiering:on moves parameters and optimizer state to host "
                    "memory."
                  : ".";
    } else if (facts_.tiering == Tiering::kOn && facts_.parts.capturing &&
               facts_.stays.of(StayReason::kEvictable) > 0) {
      text +=
          " Nothing is evicted while a CUDA graph is captured: call "
          "stratalloc.evict() before the capture.";
    }
    for (const RefusalFacts::Holder& holder : facts_.holders) {
      if (most.categories != 0 &&
          (Bit(holder.category) & most.categories) == 0) {
        continue;
      }
      if (!holder.named || most.bytes == 0) continue;
      // Of a single owner the size is said already.
      text += " Largest: " + holder.name;
      if (holder.bytes != most.bytes) text += ", " + FormatBytes(holder.bytes);
      return text + ".";
    }
    return text;
  }

  const RefusalFacts& facts_;
  const TryAgain& again_;
  Tried base_;
};

}  // namespace

std::string RefusalCause(const RefusalFacts& facts, const TryAgain& again) {
  return Cause(facts, again).Text();
}

}  // namespace stratalloc
