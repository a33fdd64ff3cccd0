// SPDX-License-Identifier: Apache-2.0
#include "python_shim/bridge_api/blocks.h"

#include <cstdio>
#include <string>
#include <utility>

#include "accounting/attribution.h"
#include "accounting/category.h"
#include "accounting/scope_stack.h"
#include "accounting/scope_text.h"
#include "allocator/base/check.h"
#include "allocator/memory/external_streams.h"
#include "python_shim/core/core.h"
#include "python_shim/refusals/add_cause.h"
#include "python_shim/refusals/refusals.h"

namespace stratalloc::core {
namespace {

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
  DeviceAllocator* device = Core::Get().OwnerOf(address);
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

Result<AllocatedBlock> Malloc(int device, Bytes size, StreamId stream,
                              MallocHint hint) {
  const ScopeFrame frame = PayingFrame(CurrentScope(), hint);
  const Charge charge = ChargeOf(frame, static_cast<DeviceIndex>(device));
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

Result<AllocatedBlock> MallocAt(int device, Bytes size, StreamId stream,
                                MallocHint hint, Address address) {
  const ScopeFrame frame = PayingFrame(CurrentScope(), hint);
  const Charge charge = ChargeOf(frame, static_cast<DeviceIndex>(device));
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              Core::Get().Opened(device));
  if (allocator == nullptr) {
    return Fail(ErrorCode::kNotFound, "the device has no memory yet");
  }
  return allocator->MallocAt(
      {size, stream, frame.lifetime, charge, hint == MallocHint::kUnseen},
      address);
}

Bytes RecordOutOfMemory(int device, Bytes size, StreamId stream,
                        MallocHint hint, Bytes free_bytes) {
  DeviceAllocator* const opened = Core::Get().Opened(device).value_or(nullptr);
  if (opened == nullptr) return size;
  const Charge charge = ChargeOf(PayingFrame(CurrentScope(), hint),
                                 static_cast<DeviceIndex>(device));
  return opened->RecordOutOfMemory(stream, size, charge, free_bytes);
}

std::string TellRefusedMalloc(int device, Bytes size, StreamId stream,
                              MallocHint hint, const std::string& message) {
  if (!Refusals::AnyoneHears()) return "";
  const ScopeFrame frame = PayingFrame(CurrentScope(), hint);
  const Charge charge = ChargeOf(frame, static_cast<DeviceIndex>(device));
  return Refusals::Tell(device,
                        {.request = {size, stream, frame.lifetime, charge,
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
  DeviceAllocator* device = Core::Get().OwnerOf(address);
  return device != nullptr && device->Owns(address);
}

void NoteExternalStream(StreamId stream) { ExternalStreams::Add(stream); }
void NoteLastingStream(StreamId stream) {
  ExternalStreams::NoteLasting(stream);
}

Status RecordStream(Address address, int device, StreamId stream) {
  DeviceAllocator* owner = Core::Get().OwnerOf(address);
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
  DeviceAllocator* device = Core::Get().OwnerOf(address);
  if (device == nullptr) {
    return Fail(ErrorCode::kNotFound,
                "invalid device pointer: " + Hex(address));
  }
  return device->BaseAllocation(address);
}

Status EmptyCache(bool counted_in_routes) {
  STRATALLOC_RETURN_IF_ERROR(Core::Get().NotInAFork());
  return Allocator::Get().EmptyCache(counted_in_routes);
}

Result<Bytes> LargestCached(int device) {
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * allocator,
                              Core::Get().Opened(device));
  return allocator != nullptr ? allocator->LargestCached() : Bytes{0};
}

}  // namespace stratalloc::core
