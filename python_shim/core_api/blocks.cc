// SPDX-License-Identifier: Apache-2.0
#include "python_shim/core_api/blocks.h"

#include <cstdio>
#include <string>
#include <utility>

#include "accounting/category.h"
#include "accounting/scope_stack.h"
#include "accounting/scope_text.h"
#include "allocator/base/check.h"
#include "allocator/memory/external_streams.h"
#include "allocator/state/frame_accounts.h"
#include "python_shim/core.h"
#include "python_shim/refusal_text.h"
#include "python_shim/refusals.h"

namespace stratalloc::core {
namespace {

DeviceAllocator* DeviceOf(Address address) {
  return Core::Get().abandoned() ? nullptr
                                 : Allocator::Get().FindByAddress(address);
}

// The account of the frame on top, on this device.
FrameId FrameOn(DeviceIndex device, ScopeId scope) {
  FrameAccounts& accounts = FrameAccounts::Get();
  FrameId id = CurrentScope().account;
  while (id != 0 && accounts.at(id).device != device) id = accounts.at(id).next;
  if (__builtin_expect(id != 0, 1)) return id;
  if (Core::Get().abandoned()) return 0;
  id = accounts.Begin(device, scope);
  if (id == 0) return 0;
  accounts.at(id).next = CurrentScope().account;
  SetFrameAccount(id);
  return id;
}

// What a frame of activations makes is temporary until it ends. In line, as the
// next one: they are a tenth of a malloc's instructions.
[[gnu::always_inline]] inline Charge ChargeOf(const ScopeFrame& frame,
                                              int device) {
  Charge charge{frame.payer, frame.category};
  if (frame.category == Category::kActivation &&
      frame.lifetime == LifetimeClass::kTransient && ScopeDepth() > 0) {
    charge.frame = FrameOn(static_cast<DeviceIndex>(device), frame.payer);
    if (charge.frame != 0) charge.category = Category::kTemporary;
  }
  return charge;
}

// Who is allocating: the scope on top, corrected by what autograd knows.
[[gnu::always_inline]] inline ScopeFrame Allocating(MallocHint hint) {
  ScopeFrame frame = CurrentScope();
  if (__builtin_expect(hint == MallocHint::kNone, 1)) return frame;
  if (hint == MallocHint::kUnseen || hint == MallocHint::kScratch) {
    frame.lifetime = LifetimeClass::kTransient;
    frame.category = Category::kWorkspace;
    return frame;
  }
  if (hint == MallocHint::kCopy) {
    // Nobody knows how long it will live.
    if (frame.lifetime == LifetimeClass::kTransient) {
      frame.lifetime = LifetimeClass::kUnknown;
    }
    return frame;
  }
  // A forward inside of a node recomputes what it needs (checkpoints).
  if (frame.in_backward && !frame.backward) return frame;
  constexpr unsigned kFixed = 1u << Raw(LifetimeClass::kPersistent) |
                              1u << Raw(LifetimeClass::kOptimizer) |
                              1u << Raw(LifetimeClass::kStaying);
  const bool fixed = (kFixed >> Raw(frame.lifetime) & 1) != 0;
  if (hint == MallocHint::kGradient && !fixed) {
    frame.lifetime = LifetimeClass::kGradient;
    frame.category = Category::kGradient;
  } else if (hint == MallocHint::kBesideGradient && !fixed) {
    frame.lifetime = LifetimeClass::kGradient;
    frame.category = Category::kActivation;
  } else if (hint == MallocHint::kBackward && !fixed) {
    frame.lifetime = LifetimeClass::kTransient;
    if (frame.category == Category::kUnknown) {
      frame.category = Category::kActivation;
    }
  }
  return frame;
}

std::string Hex(Address address) {
  char text[32];
  std::snprintf(text, sizeof(text), "%#llx",
                static_cast<unsigned long long>(address));
  return text;
}

void ReportBadFree(Address address) {
  Charge charge;
  if (Allocator::Get().LastOwner(address, &charge)) {
    Log(LogLevel::kError, "double free of " + Hex(address) +
                              ", last owned by " + ScopeText(charge.scope) +
                              " (" + CategoryName(charge.category) +
                              "); ignored");
    return;
  }
  Log(LogLevel::kError, "free of " + Hex(address) +
                            ", which stratalloc did not hand out or knows as "
                            "the middle of a block; ignored");
}

// The rest of Malloc and Free, apart: their frames are large and guarded, and
// the fast path pays for the frame it is in.
__attribute__((noinline)) void SlowMalloc(int device, Bytes size,
                                          StreamId stream,
                                          LifetimeClass lifetime, Charge charge,
                                          bool raw,
                                          Result<AllocatedBlock>* block) {
  Result<DeviceAllocator*> allocator = Core::Get().Device(device);
  if (!allocator) {
    *block = tl::unexpected(std::move(allocator).error());
    return;
  }
  const MallocRequest request{size, stream, lifetime, charge, raw};
  *block = (*allocator)->SlowMalloc(request);
  if (*block) return;
  if (block->error().code == ErrorCode::kLimited) {
    // The message names those who hold what is limited.
    block->error().code = ErrorCode::kOutOfMemory;
    return;
  }
  AddCause(&block->error(), **allocator, {.request = request});
}

__attribute__((noinline)) std::optional<DeviceIndex> SlowFree(
    Address address, AllocatedBlock* freed) {
  if (address == 0 || Core::Get().abandoned()) return std::nullopt;
  DeviceAllocator* device = DeviceOf(address);
  if (device != nullptr) {
    if (Result<AllocatedBlock> block = device->SlowFree(address)) {
      *freed = *block;
      Allocator::NoteFreed(*freed);
      return device->device().index();
    }
  }
  ReportBadFree(address);
  return std::nullopt;
}

}  // namespace

void EndFrame(FrameId account) {
  if (Core::Get().abandoned()) return;
  FrameAccounts& accounts = FrameAccounts::Get();
  while (account != 0) {
    const FrameAccount& frame = accounts.at(account);
    const FrameId next = frame.next;
    if (frame.HasNoBlocks()) {
      accounts.Recycle(account);  // by nobody else: none of its blocks is left
    } else if (DeviceAllocator* device = Allocator::Get().Find(frame.device)) {
      device->EndFrame(account);
    }
    account = next;
  }
}

Result<AllocatedBlock> Malloc(int device, Bytes size, StreamId stream,
                              MallocHint hint) {
  const ScopeFrame frame = Allocating(hint);
  const Charge charge = ChargeOf(frame, device);
  const bool raw = hint == MallocHint::kUnseen;
  DeviceAllocator* const fast = opened_devices.Find(device);
  // Filled where the caller has it: copied there, its words would be loaded
  // while their stores are on their way (5 ns).
  Result<AllocatedBlock> block;
  if (fast == nullptr || raw ||
      !fast->FastMalloc(size, stream, frame.lifetime, charge, &*block)) {
    SlowMalloc(device, size, stream, frame.lifetime, charge, raw, &block);
  }
  return block;
}

Bytes RecordOutOfMemory(int device, Bytes size, StreamId stream,
                        MallocHint hint, Bytes free_bytes) {
  DeviceAllocator* const opened = Core::Get().Opened(device).value_or(nullptr);
  if (opened == nullptr) return size;
  return opened->RecordOutOfMemory(
      stream, size, ChargeOf(Allocating(hint), device), free_bytes);
}

std::string TellRefusedMalloc(int device, Bytes size, StreamId stream,
                              MallocHint hint, const std::string& message) {
  if (!Refusals::AnyoneHears()) return "";
  const ScopeFrame frame = Allocating(hint);
  return Refusals::Tell(
      device,
      {.request = {size, stream, frame.lifetime, ChargeOf(frame, device),
                   hint == MallocHint::kUnseen}},
      nullptr, message);
}

std::optional<DeviceIndex> Free(Address address, AllocatedBlock* freed) {
  DeviceAllocator* const fast = opened_devices.OwnerOf(address);
  if (fast != nullptr && fast->FastFree(address, freed)) {
    Allocator::NoteFreed(*freed);
    return fast->device().index();
  }
  return SlowFree(address, freed);
}

bool Owns(Address address) {
  DeviceAllocator* device = DeviceOf(address);
  return device != nullptr && device->Owns(address);
}

void NoteExternalStream(StreamId stream) { ExternalStreams::Add(stream); }
void NoteLastingStream(StreamId stream) {
  ExternalStreams::NoteLasting(stream);
}

Status RecordStream(Address address, int device, StreamId stream) {
  DeviceAllocator* owner = DeviceOf(address);
  if (owner == nullptr) {
    return Fail(ErrorCode::kNotFound,
                "record_stream on memory that is not stratalloc's");
  }
  const auto of = static_cast<DeviceIndex>(device);
  return owner->RecordStream(address, of == owner->device().index()
                                          ? stream
                                          : StreamElsewhere(of, stream));
}

Result<SegmentView> BaseAllocation(Address address) {
  DeviceAllocator* device = DeviceOf(address);
  if (device == nullptr) {
    return Fail(ErrorCode::kNotFound,
                "invalid device pointer: " + Hex(address));
  }
  return device->BaseAllocation(address);
}

Status EmptyCache() {
  STRATALLOC_RETURN_IF_ERROR(Core::Get().NotInAFork());
  return Allocator::Get().EmptyCache();
}

Result<Bytes> LargestCached(int device) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              Core::Get().Opened(device));
  return allocator != nullptr ? allocator->LargestCached() : Bytes{0};
}

}  // namespace stratalloc::core
