// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/tiered_device.h"

#include <sys/mman.h>

#include <string>
#include <utility>

#include "accounting/category.h"
#include "accounting/scope_text.h"
#include "allocator/base/check.h"

namespace stratalloc {
namespace {

// One page of pinned words that checksums are copied to.
constexpr Bytes kChecksumWords = 4096;
static_assert(TieredDevice::kWordSets * 2 * DeviceChecksum::kMost *
                  sizeof(std::uint64_t) <=
              kChecksumWords);

}  // namespace

Status TieredDevice::Prepare(DeviceAllocator& device) {
  allocator = &device;
  const Device& card = device.device();
  if (!card.has_virtual_memory()) {
    return Fail(
        ErrorCode::kUnsupported,
        card.why_no_virtual_memory() + ", its memory comes from cudaMalloc");
  }
  STRATALLOC_ASSIGN_OR_RETURN(copy_out, card.CreateStream());
  STRATALLOC_ASSIGN_OR_RETURN(copy_in, card.CreateStream());
  STRATALLOC_RETURN_IF_ERROR(MakeWords());
  STRATALLOC_ASSIGN_OR_RETURN(
      checksum, DeviceChecksum::Load(card, copy_out, checksum_words));
  return {};
}

Status TieredDevice::MakeWords() {
  void* page = mmap(nullptr, kChecksumWords, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) {
    return Fail(ErrorCode::kHostOutOfMemory, "no page for checksums");
  }
  if (Status pinned = allocator->device().RegisterHost(page, kChecksumWords);
      !pinned) {
    munmap(page, kChecksumWords);
    return pinned;
  }
  checksum_words = static_cast<std::uint64_t*>(page);
  return {};
}

void TieredDevice::Refuse(const Error& why) {
  why_not = why.message;
  allocator->SetWhyNoReclaimer(why_not);
  for (StreamId* stream : {&copy_out, &copy_in}) {
    if (*stream != kDefaultStream) allocator->device().DestroyStream(*stream);
    *stream = kDefaultStream;
  }
}

Status TieredDevice::CheckTakesPart() const {
  if (why_not.empty()) return {};
  return Fail(
      ErrorCode::kUnsupported,
      "GPU " + std::to_string(static_cast<int>(allocator->device().index())) +
          " takes no part in tiering, so nothing on it moves: " + why_not +
          ". Name what lies on other devices, or nothing, or move the model to "
          "a device that can evict");
}

void TieredDevice::NoteStopped(const Error& why) {
  refusal = why.message;
  // Of this kind the caller learns by the refusal: nothing has failed.
  if (why.code == ErrorCode::kUnsupported) return;
  stopped.Tell(LogLevel::kError, std::to_string(static_cast<int>(why.code)),
               "eviction stopped: " + refusal);
}

void TieredDevice::NotePressure() {
  pressed.fetch_add(1);
  if (under_pressure.exchange(true)) return;
  allocator->LookAtPressure();
}

void TieredDevice::EndPressure(std::uint64_t seen) {
  under_pressure.store(false);
  // A thread that was refused meanwhile notes it before it looks.
  if (pressed.load() != seen) under_pressure.store(true);
  allocator->LookAtPressure();
}

void TieredDevice::Settle(StreamId stream) {
  const Device& device = allocator->device();
  Status status = device.SynchronizeStream(stream);
  if (!status) status = device.SynchronizeDevice();
  if (status) {
    unsettled.Over();
    return;
  }
  const std::string& why = status.error().message;
  unsettled.Tell(LogLevel::kError, why,
                 "the device does not synchronise any more: " + why);
}

void TieredDevice::Close() {
  const Device& device = allocator->device();
  for (StreamId stream : {copy_out, copy_in}) {
    if (stream != kDefaultStream) device.DestroyStream(stream);
  }
  // Of a device that takes no part, too.
  if (checksum_words == nullptr) return;
  device.SynchronizeDevice();
  device.UnregisterHost(checksum_words);
  munmap(checksum_words, kChecksumWords);
}

std::string OwnersOf(DeviceAllocator& device, HandleRef handle) {
  std::string owners;
  for (const auto& [charge, bytes] : device.LiveOver(handle)) {
    const std::string name =
        ScopeText(charge.scope) + " (" + CategoryName(charge.category) + ")";
    if (owners.find(name) != std::string::npos) continue;
    owners += (owners.empty() ? "" : ", ") + name;
  }
  return owners.empty() ? "(freed)" : owners;
}

}  // namespace stratalloc
