// SPDX-License-Identifier: Apache-2.0
#include "accounting/attribution.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace stratalloc {
namespace {

constexpr DeviceIndex kGpu{0}, kOther{1};
constexpr ScopeId kLayer{7};

ScopeFrame Frame(Category category, LifetimeClass lifetime) {
  ScopeFrame frame;
  frame.scope = frame.payer = kLayer;
  frame.category = category;
  frame.lifetime = lifetime;
  return frame;
}

// A forward's.
ScopeFrame Activations() {
  return Frame(Category::kActivation, LifetimeClass::kTransient);
}

void ExpectPays(const ScopeFrame& frame, MallocHint hint, Category category,
                LifetimeClass lifetime) {
  const ScopeFrame paying = PayingFrame(frame, hint);
  EXPECT_EQ(paying.payer, frame.payer);
  EXPECT_EQ(paying.category, category);
  EXPECT_EQ(paying.lifetime, lifetime);
}

TEST(PayingFrame, WithoutHintIsTheFrameOnTop) {
  ExpectPays(Frame(Category::kParameter, LifetimeClass::kPersistent),
             MallocHint::kNone, Category::kParameter,
             LifetimeClass::kPersistent);
  ExpectPays(Activations(), MallocHint::kNone, Category::kActivation,
             LifetimeClass::kTransient);
}

TEST(PayingFrame, UnseenAndScratchMemoryIsATransientWorkspace) {
  for (const MallocHint hint : {MallocHint::kUnseen, MallocHint::kScratch}) {
    ExpectPays(Frame(Category::kParameter, LifetimeClass::kPersistent), hint,
               Category::kWorkspace, LifetimeClass::kTransient);
  }
}

TEST(PayingFrame, CopyInATransientScopeMayBeEvicted) {
  ExpectPays(Activations(), MallocHint::kCopy, Category::kActivation,
             LifetimeClass::kUnknown);
  ExpectPays(Frame(Category::kOptimizerState, LifetimeClass::kOptimizer),
             MallocHint::kCopy, Category::kOptimizerState,
             LifetimeClass::kOptimizer);
}

TEST(PayingFrame, GradientHintMakesAGradient) {
  ExpectPays(Activations(), MallocHint::kGradient, Category::kGradient,
             LifetimeClass::kGradient);
}

TEST(PayingFrame, BesideGradientIsAnActivationAmongGradients) {
  ExpectPays(Activations(), MallocHint::kBesideGradient, Category::kActivation,
             LifetimeClass::kGradient);
  ExpectPays(ScopeFrame{}, MallocHint::kBesideGradient, Category::kActivation,
             LifetimeClass::kGradient);
}

TEST(PayingFrame, BackwardIsTransientAndKeepsAKnownCategory) {
  ExpectPays(ScopeFrame{}, MallocHint::kBackward, Category::kActivation,
             LifetimeClass::kTransient);
  ExpectPays(Frame(Category::kInput, LifetimeClass::kUnknown),
             MallocHint::kBackward, Category::kInput,
             LifetimeClass::kTransient);
}

TEST(PayingFrame, BackwardHintsKeepAFixedLifetime) {
  for (const LifetimeClass fixed :
       {LifetimeClass::kPersistent, LifetimeClass::kOptimizer,
        LifetimeClass::kStaying}) {
    for (const MallocHint hint : {MallocHint::kGradient, MallocHint::kBackward,
                                  MallocHint::kBesideGradient}) {
      ExpectPays(Frame(Category::kUnknown, fixed), hint, Category::kUnknown,
                 fixed);
    }
  }
}

TEST(PayingFrame, RecomputationInANodeIgnoresBackwardHints) {
  ScopeFrame frame = Activations();
  frame.in_backward = true;
  ExpectPays(frame, MallocHint::kGradient, Category::kActivation,
             LifetimeClass::kTransient);
  frame.backward = true;  // the node itself
  ExpectPays(frame, MallocHint::kGradient, Category::kGradient,
             LifetimeClass::kGradient);
}

class ChargeOfTest : public testing::Test {
 protected:
  void TearDown() override { PopScopesTo(0); }

  // As a malloc does.
  static Charge Of(MallocHint hint, DeviceIndex device = kGpu) {
    return ChargeOf(PayingFrame(CurrentScope(), hint), device);
  }
};

TEST_F(ChargeOfTest, RootPaysWithoutAScope) {
  const Charge charge = Of(MallocHint::kNone);
  EXPECT_EQ(charge.scope, kRootScope);
  EXPECT_EQ(charge.category, Category::kUnknown);
  EXPECT_EQ(charge.frame, FrameId{0});
}

TEST_F(ChargeOfTest, BackwardWithoutAScopeHasNoAccount) {
  const Charge charge = Of(MallocHint::kBackward);
  EXPECT_EQ(charge.category, Category::kActivation);
  EXPECT_EQ(charge.frame, FrameId{0});
}

TEST_F(ChargeOfTest, ActivationFrameAllocatesTemporaries) {
  PushScope(Activations());
  const Charge charge = Of(MallocHint::kNone);
  EXPECT_EQ(charge.scope, kLayer);
  EXPECT_EQ(charge.category, Category::kTemporary);
  ASSERT_NE(charge.frame, FrameId{0});
  EXPECT_EQ(FrameAccounts::Get().at(charge.frame).scope, kLayer);
  EXPECT_EQ(Of(MallocHint::kNone), charge);
}

TEST_F(ChargeOfTest, EachFrameAndDeviceHasItsAccount) {
  PushScope(Activations());
  const Charge here = Of(MallocHint::kNone);
  const Charge there = Of(MallocHint::kNone, kOther);
  ASSERT_NE(there.frame, FrameId{0});
  EXPECT_NE(here.frame, there.frame);
  EXPECT_EQ(FrameAccounts::Get().at(there.frame).device, kOther);
  EXPECT_EQ(Of(MallocHint::kNone), here);
  EXPECT_EQ(Of(MallocHint::kNone, kOther), there);
  PushScope(Activations());
  EXPECT_NE(Of(MallocHint::kNone).frame, here.frame);
  PopScope();
  EXPECT_EQ(Of(MallocHint::kNone), here);
}

TEST_F(ChargeOfTest, OtherCategoriesAndLifetimesAreNeverTemporary) {
  PushScope(Frame(Category::kParameter, LifetimeClass::kTransient));
  EXPECT_EQ(Of(MallocHint::kNone).category, Category::kParameter);
  EXPECT_EQ(Of(MallocHint::kNone).frame, FrameId{0});
  PopScope();
  PushScope(Activations());
  EXPECT_EQ(Of(MallocHint::kCopy).category, Category::kActivation);
  EXPECT_EQ(Of(MallocHint::kCopy).frame, FrameId{0});
}

TEST_F(ChargeOfTest, ChildOfAForkChargesWithoutAnAccount) {
  PushScope(Activations());
  EXPECT_EXIT(
      {
        FrameAccounts::AbandonAfterFork();
        const Charge charge = Of(MallocHint::kNone);
        _exit(charge.frame == 0 && charge.category == Category::kActivation
                  ? 0
                  : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace stratalloc
