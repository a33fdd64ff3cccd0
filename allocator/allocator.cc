// SPDX-License-Identifier: Apache-2.0
#include "allocator/allocator.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace stratalloc {

constinit std::array<Allocator::Freed, Allocator::kRemembered>
    Allocator::freed_{};

constinit OpenedDevices opened_devices;

Allocator& Allocator::Get() {
  static Allocator* allocator = new Allocator(opened_devices);
  return *allocator;
}

Allocator::Allocator(OpenedDevices& opened) : opened_(opened) {
  fractions_.fill(1.0);
}

Allocator::~Allocator() {
  const std::vector<DeviceAllocator*> all(Opened().begin(), Opened().end());
  opened_.Forget();
  for (DeviceAllocator* device : all) delete device;
}

Status Allocator::Init(int count, const DeviceAllocator::Options& options,
                       Hooks hooks) {
  if (count > kMaxDevices) {
    return Fail(ErrorCode::kUnsupported,
                std::to_string(count) + " devices; at most " +
                    std::to_string(kMaxDevices) +
                    " are supported: hide some with CUDA_VISIBLE_DEVICES");
  }
  MutexLock lock(mutex_);
  if (count <= count_.load()) return {};
  if (count_.load() == 0) {
    options_ = options;
    hooks_ = std::move(hooks);
  }
  count_.store(count, std::memory_order_release);
  return {};
}

Result<DeviceAllocator*> Allocator::Open(DeviceIndex index) {
  if (DeviceAllocator* const found = Find(index)) return found;
  const int number = static_cast<int>(index);
  if (number < 0 || number >= device_count()) {
    return Fail(ErrorCode::kInvalidArgument,
                "no device " + std::to_string(number) + ": " +
                    std::to_string(device_count()) + " initialised");
  }
  const auto named = [&](const Error& error) {
    return Fail(error.code,
                "device " + std::to_string(number) +
                    " cannot be opened: " + error.message +
                    ". Nothing was allocated there; the next allocation tries "
                    "again, and other devices are not affected");
  };
  MutexLock lock(mutex_);
  if (DeviceAllocator* const found = Find(index)) return found;
  Result<Device> device = Device::Open(index);
  if (!device) return named(device.error());
  Result<std::unique_ptr<DeviceAllocator>> created =
      DeviceAllocator::Create(*device, options_);
  if (!created) return named(created.error());
  DeviceAllocator& made = **created;
  if (Status plugged = hooks_.plug(made); !plugged) {
    return named(plugged.error());
  }
  made.SetFraction(fractions_[static_cast<std::size_t>(number)]);
  if (history_) made.ConfigureHistory(*history_);
  made.NoteTracker();
  if (sites_) made.RecordSites(true);
  made.CountSynchronisations(
      synchronisations_[static_cast<std::size_t>(number)]);
  opened_.Add(*created->release());
  hooks_.opened(made);
  return &made;
}

DeviceAllocator* Allocator::Find(DeviceIndex device) const {
  return opened_.Find(static_cast<int>(device));
}

DeviceAllocator* Allocator::FindByAddress(Address address) const {
  if (DeviceAllocator* const owner = opened_.OwnerOf(address)) return owner;
  for (DeviceAllocator* device : Opened()) {
    if (device->ContainsUnmanaged(address)) return device;
  }
  return nullptr;
}

Result<SharedBlock> Allocator::Share(DeviceAllocator& device, Address address) {
  Result<SharedBlock> shared = device.Share(address);
  if (shared || shared.error().code != ErrorCode::kUnsupported) return shared;
  for (DeviceAllocator* one : Opened()) one->CloseDescriptors();
  return device.Share(address);
}

double Allocator::Fraction(DeviceIndex device) const {
  if (DeviceAllocator* const found = Find(device)) return found->fraction();
  const int index = static_cast<int>(device);
  if (index < 0 || index >= kMaxDevices) return 1.0;
  MutexLock lock(mutex_);
  return fractions_[static_cast<std::size_t>(index)];
}

void Allocator::SetFraction(DeviceIndex device, double fraction) {
  const int index = static_cast<int>(device);
  if (index < 0 || index >= kMaxDevices) return;
  MutexLock lock(mutex_);
  fractions_[static_cast<std::size_t>(index)] = fraction;
  if (DeviceAllocator* const found = Find(device)) found->SetFraction(fraction);
}

void Allocator::ConfigureHistory(const History::Options& options) {
  MutexLock lock(mutex_);
  history_ = options;
  for (DeviceAllocator* device : Opened()) device->ConfigureHistory(options);
}

void Allocator::NoteTracker() {
  MutexLock lock(mutex_);
  for (DeviceAllocator* device : Opened()) device->NoteTracker();
}

void Allocator::RecordSites(bool on) {
  MutexLock lock(mutex_);
  if (on == std::exchange(sites_, on)) return;
  for (DeviceAllocator* device : Opened()) device->RecordSites(on);
}

DeviceStats Allocator::Stats(DeviceIndex device) {
  if (DeviceAllocator* const found = Find(device)) return found->Stats();
  MutexLock lock(mutex_);
  if (DeviceAllocator* const found = Find(device)) return found->Stats();
  DeviceStats stats;
  stats.num_sync_all_streams =
      synchronisations_[static_cast<std::size_t>(device)];
  return stats;
}

void Allocator::ResetAccumulatedStats(DeviceIndex device) {
  MutexLock lock(mutex_);
  synchronisations_[static_cast<std::size_t>(device)] = 0;
  if (DeviceAllocator* const found = Find(device)) {
    found->ResetAccumulatedStats();
  }
}

Status Allocator::EmptyCache(bool counted_in_routes) {
  Status first_error;
  for (int i = 0; i < device_count(); ++i) {
    const auto device = static_cast<DeviceIndex>(i);
    DeviceAllocator* found = Find(device);
    if (found == nullptr) {
      MutexLock lock(mutex_);
      found = Find(device);
      if (found == nullptr) {
        ++synchronisations_[static_cast<std::size_t>(i)];
        continue;
      }
    }
    if (Status status = found->EmptyCache(counted_in_routes);
        !status && first_error) {
      first_error = std::move(status);
    }
  }
  return first_error;
}

bool Allocator::LastOwner(Address address, Charge* charge) const {
  const Freed& slot = freed_[(address / kMinBlockSize) % kRemembered];
  if (slot.address.load(std::memory_order_relaxed) != address) return false;
  const std::uint64_t packed = slot.charge.load(std::memory_order_relaxed);
  charge->scope = ScopeId{static_cast<std::uint32_t>(packed >> 8)};
  charge->category = static_cast<Category>(packed & 0xff);
  return true;
}

}  // namespace stratalloc
