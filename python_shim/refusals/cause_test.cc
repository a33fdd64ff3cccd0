// SPDX-License-Identifier: Apache-2.0
#include "python_shim/refusals/cause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <string>

namespace stratalloc {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using Tiering = RefusalFacts::Tiering;

// A card of 256 MiB with 224 MiB of activations that refused 64 MiB.
RefusalFacts Facts() {
  RefusalFacts facts;
  facts.asked = 64 * kMiB;
  facts.parts.card = {.free = 32 * kMiB, .total = 256 * kMiB};
  facts.parts.ours = 224 * kMiB;
  facts.parts.allowed = facts.parts.limit = 256 * kMiB;
  facts.parts.held.reserved = facts.parts.held.allocated = 224 * kMiB;
  facts.stays.of(StayReason::kActivation) = 224 * kMiB;
  facts.staying = 224 * kMiB;
  facts.holders = {{"Net.0.1", Category::kActivation, 128 * kMiB},
                   {"Net.0.2", Category::kTemporary, 96 * kMiB}};
  facts.own_pid = 7;
  return facts;
}

RefusalFacts Off(Category category, const std::string& name) {
  RefusalFacts facts = Facts();
  facts.tiering = Tiering::kOff;
  facts.stays = {};
  facts.stays.of(StayReason::kTieringOff) = 224 * kMiB;
  facts.holders = {{name, category, 224 * kMiB, !name.empty()}};
  return facts;
}

// Served by what `helps` says, else 32 MiB are missing.
std::string Text(
    const RefusalFacts& facts, const std::function<bool(const Trial&)>& helps =
                                   [](const Trial&) { return false; }) {
  return RefusalCause(facts, [&](const Trial& trial) {
    Tried tried;
    tried.served = helps(trial);
    tried.missing = tried.served ? 0 : 32 * kMiB;
    return tried;
  });
}

TEST(RefusalCause, ActivationsAreNamedWithTheRemedy) {
  EXPECT_EQ(Text(Facts()),
            "Activations hold 224.00 MiB: reduce the batch size or use "
            "torch.utils.checkpoint. Without a backward pass, use "
            "torch.no_grad(); keep a loss as loss.item(). Largest: Net.0.1, "
            "128.00 MiB.");
}

TEST(RefusalCause, SizeOfOneOwnerIsSaidOnce) {
  RefusalFacts facts = Facts();
  facts.holders = {{"Net", Category::kActivation, 224 * kMiB}};
  EXPECT_THAT(Text(facts), EndsWith("Largest: Net."));
}

TEST(RefusalCause, WeightsWithTieringOffLeadToTiering) {
  EXPECT_EQ(Text(Off(Category::kParameter, "Net.head")),
            "Parameters and buffers hold 224.00 MiB: set tiering:on, which "
            "moves them to host memory while they are not used, or use a "
            "smaller model, a smaller dtype or a larger GPU. Tiering is off: "
            "nothing was evicted. Largest: Net.head.");
}

TEST(RefusalCause, TieringIsNotAdvisedWithoutATierBelow) {
  RefusalFacts facts = Off(Category::kParameter, "Net.head");
  facts.tiers_below = false;
  EXPECT_THAT(Text(facts), Not(HasSubstr("tiering:on")));
  EXPECT_THAT(Text(facts), Not(HasSubstr("Tiering is off")));
  EXPECT_THAT(Text(facts),
              HasSubstr("host_budget and disk_budget are 0: nothing was "
                        "evicted; with one of them parameters and optimizer "
                        "state leave."));
  facts.holders[0].category = Category::kActivation;
  EXPECT_THAT(Text(facts), HasSubstr("are 0: nothing was evicted."));
}

TEST(RefusalCause, TieringIsNotAdvisedWhereItMovesTooLittle) {
  RefusalFacts facts = Off(Category::kActivation, "Net.head");
  facts.holders.push_back({"Net", Category::kParameter, 31 * kMiB});
  EXPECT_THAT(Text(facts), Not(HasSubstr("tiering:on")));
  facts.holders.back().bytes = 32 * kMiB;
  EXPECT_THAT(Text(facts), HasSubstr("nothing was evicted; tiering:on moves"));
}

TEST(RefusalCause, CategoriesHaveARemedyEach) {
  std::set<std::string> texts;
  for (const Category category :
       {Category::kActivation, Category::kParameter, Category::kGradient,
        Category::kOptimizerState, Category::kInput, Category::kWorkspace,
        Category::kUnknown}) {
    const std::string text = Text(Off(category, "Net"));
    EXPECT_THAT(text, HasSubstr(" hold 224.00 MiB: "));
    EXPECT_THAT(text, HasSubstr("Tiering is off: nothing was evicted."));
    texts.insert(text);
  }
  EXPECT_EQ(texts.size(), 7u);
}

TEST(RefusalCause, TensorOutsideOfEveryScopeIsNoLargestOwner) {
  EXPECT_THAT(Text(Off(Category::kUnknown, "")), Not(HasSubstr("Largest")));
}

TEST(RefusalCause, RequestAboveTheCardIsCalledThat) {
  RefusalFacts facts = Facts();
  facts.asked = 300 * kMiB;
  EXPECT_EQ(Text(facts),
            "The tensor is larger than the card: use a smaller batch, a "
            "smaller dtype or smaller parts. No setting helps.");
  facts.is_operator = true;
  EXPECT_THAT(Text(facts),
              StartsWith("Its operands, in whole pages, are larger "
                         "than the card: "));
}

TEST(RefusalCause, RequestAboveALimitNamesTheLimit) {
  RefusalFacts facts = Facts();
  facts.parts.allowed = 48 * kMiB;
  facts.gpu_limit = 48 * kMiB;
  EXPECT_THAT(Text(facts), StartsWith("The tensor is larger than gpu_limit "
                                      "allows, 48.00 MiB: raise gpu_limit"));
  facts.gpu_limit = 0;
  facts.parts.fraction = 48.0 / 256;
  EXPECT_THAT(Text(facts),
              HasSubstr("than the memory fraction allows, 48.00 MiB: raise it "
                        "with torch.cuda.set_per_process_memory_fraction(), "
                        "or use a smaller batch"));
}

TEST(RefusalCause, FractionIsNamedBeforeGpuLimitOfWhichItIs) {
  RefusalFacts facts = Facts();
  facts.gpu_limit = 64 * kMiB;
  facts.parts.fraction = .5;
  facts.parts.allowed = 32 * kMiB;
  facts.asked = 48 * kMiB;
  EXPECT_THAT(Text(facts),
              HasSubstr("than the memory fraction allows, 32.00 MiB: raise it "
                        "with torch.cuda.set_per_process_memory_fraction(), "
                        "or use a smaller batch"));
  facts.asked = 80 * kMiB;  // the whole of gpu_limit would not do
  EXPECT_THAT(Text(facts),
              HasSubstr("set_per_process_memory_fraction() and raise "
                        "gpu_limit, or use a smaller batch"));
}

TEST(RefusalCause, LimitThatHelpsIsNamedBesideTheHolders) {
  RefusalFacts facts = Facts();
  facts.parts.allowed = facts.gpu_limit = 240 * kMiB;
  const auto limit = [](const Trial& trial) { return trial.more_limit > 0; };
  EXPECT_THAT(Text(facts, limit),
              StartsWith("gpu_limit allows 240.00 MiB of the card, and "
                         "activations hold 224.00 MiB: raise gpu_limit, or "
                         "reduce the batch size"));
  EXPECT_THAT(Text(facts), StartsWith("Activations hold"));
}

TEST(RefusalCause, FullTiersNameTheBudgets) {
  RefusalFacts facts = Facts();
  facts.room_lacking = 6 * kMiB;
  EXPECT_EQ(Text(facts),
            "Activations hold 224.00 MiB, and eviction needs at least 6.00 MiB "
            "more in host memory or on disk: raise host_budget or "
            "disk_budget.");
  facts.room_lacking = 0;
  EXPECT_THAT(Text(facts, [](const Trial& t) { return t.more_room > 0; }),
              HasSubstr("eviction needs more room in host memory"));
}

TEST(RefusalCause, PinsAndPoolsAreNamedWhereEvictionStopsAtThem) {
  RefusalFacts facts = Facts();
  facts.stays.of(StayReason::kActivation) = 0;
  facts.stays.of(StayReason::kProgram) = 224 * kMiB;
  EXPECT_THAT(Text(facts), StartsWith("Pinned tensors hold 224.00 MiB: take "
                                      "pins back (stratalloc.unpin)"));
  facts.stays = {};
  facts.stays.of(StayReason::kPrivatePool) = 224 * kMiB;
  EXPECT_THAT(Text(facts),
              StartsWith("CUDA graphs and MemPools hold 224.00 MiB: reset"));
}

TEST(RefusalCause, FreePiecesNameTheOwnerBetweenThem) {
  RefusalFacts facts = Facts();
  facts.parts.held.allocated = 100 * kMiB;
  facts.staying = 100 * kMiB;
  Hole hole;
  hole.free = kMiB;
  hole.oldest.charge.category = Category::kUnknown;
  facts.parts.held.holes = {hole};
  EXPECT_EQ(Text(facts),
            "156.00 MiB are free, but in pieces between small live tensors: "
            "create these before the large tensors, join them in one tensor, "
            "or keep them on the CPU.");
  facts.parts.held.holes[0].oldest.charge.category = Category::kParameter;
  EXPECT_THAT(Text(facts), EndsWith("create the model and its optimizer before "
                                    "other large tensors."));
  // The scope whose tensors lie there makes the request itself.
  facts.parts.held.holes[0].oldest.charge.scope = ScopeId{7};
  facts.asks = ScopeId{8};
  EXPECT_THAT(Text(facts), EndsWith("other large tensors."));
  facts.asks = ScopeId{7};
  EXPECT_THAT(Text(facts),
              EndsWith(", which also makes this request: use a larger GPU, or "
                       "layers of other sizes."));
  facts.parts.held.holes[0].oldest.charge.category = Category::kUnknown;
  EXPECT_THAT(Text(facts), EndsWith("or keep them on the CPU."));
}

TEST(RefusalCause, LastPiecesOfAFullCardAreNoCause) {
  RefusalFacts facts = Facts();
  facts.asked = 8 * kMiB;
  facts.parts.held.allocated = 200 * kMiB;
  facts.staying = 200 * kMiB;
  EXPECT_THAT(Text(facts), StartsWith("Activations hold 224.00 MiB: "));
  facts.parts.held.allocated = facts.staying = 100 * kMiB;
  EXPECT_THAT(Text(facts), HasSubstr("are free, but in pieces"));
  facts.is_operator = true;
  EXPECT_THAT(Text(facts), StartsWith("Activations hold 224.00 MiB: "));
}

TEST(RefusalCause, OtherProcessesAreTheCauseIfTheyHoldMore) {
  RefusalFacts facts = Facts();
  facts.parts.ours = facts.parts.held.allocated = facts.parts.held.reserved =
      32 * kMiB;
  facts.parts.card.free = 32 * kMiB;
  facts.staying = 32 * kMiB;
  const auto card = [](const Trial& trial) { return trial.more_card > 0; };
  EXPECT_THAT(Text(facts, card),
              StartsWith("192.00 MiB of the card are held by other processes, "
                         "or by libraries of this one outside of PyTorch: "));
  facts.processes = {{7, 40 * kMiB}, {9, 184 * kMiB}};
  EXPECT_THAT(Text(facts, card),
              StartsWith("Other processes hold more of the card than PyTorch "
                         "here: end those (nvidia-smi lists them), choose"));
  facts.processes = {{7, 224 * kMiB}};
  EXPECT_THAT(Text(facts, card),
              StartsWith("Libraries of this process hold 192.00 MiB"));
}

TEST(RefusalCause, PendingFreesAndPoolsAreNamed) {
  RefusalFacts facts = Facts();
  facts.parts.held.pending = 40 * kMiB;
  facts.parts.capturing = true;
  EXPECT_THAT(Text(facts, [](const Trial& t) { return t.streams_end; }),
              StartsWith("40.00 MiB are freed but still in use by other "
                         "streams until the capture of a CUDA graph ends: "));
  facts.parts.held.in_private_pools = 40 * kMiB;
  EXPECT_THAT(Text(facts, [](const Trial& t) { return t.pools_end; }),
              StartsWith("CUDA graphs and MemPools keep 40.00 MiB free"));
}

TEST(RefusalCause, CaptureSaysThatNothingLeaves) {
  RefusalFacts facts = Facts();
  facts.parts.capturing = true;
  facts.stays.of(StayReason::kEvictable) = 20 * kMiB;
  EXPECT_THAT(Text(facts), HasSubstr("Nothing is evicted while a CUDA graph is "
                                     "captured: call stratalloc.evict()"));
}

TEST(RefusalCause, MemoryThatCameFreeLeadsToATry) {
  EXPECT_THAT(Text(Facts(), [](const Trial&) { return true; }),
              HasSubstr("would be served now: try again."));
}

TEST(RefusalCause, RequestLargerThanTheHoldersIsTheCause) {
  RefusalFacts facts = Facts();
  facts.asked = 230 * kMiB;
  EXPECT_THAT(Text(facts),
              StartsWith("The tensor is the largest part, and activations "
                         "hold 224.00 MiB beside it: use a smaller batch"));
}

// A reader gets each size once.
TEST(RefusalCause, NoSizeIsSaidTwice) {
  RefusalFacts limited = Facts();
  limited.parts.allowed = limited.gpu_limit = 240 * kMiB;
  const auto limit = [](const Trial& trial) { return trial.more_limit > 0; };
  for (const std::string& text : {Text(Facts()), Text(limited, limit),
                                  Text(Off(Category::kParameter, "Net")),
                                  Text(Off(Category::kActivation, "Net"))}) {
    const std::regex size("[0-9.]+ [KMG]iB");
    std::multiset<std::string> sizes;
    for (std::sregex_iterator it(text.begin(), text.end(), size), end;
         it != end; ++it) {
      sizes.insert(it->str());
      EXPECT_EQ(sizes.count(it->str()), 1u) << text;
    }
  }
}

}  // namespace
}  // namespace stratalloc
