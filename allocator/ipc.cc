// SPDX-License-Identifier: Apache-2.0
#include "allocator/ipc.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "allocator/descriptor_server.h"
#include "allocator/descriptor_source.h"
#include "allocator/state/settings.h"

namespace stratalloc {
namespace {

constexpr char kUntyped = 2;  // versions
constexpr char kTyped = 3;
constexpr char kMalloc = 'c';
constexpr char kHandles = 'e';
constexpr std::size_t kFabricBytes = 64;
// More would be more memory than any device has; keeps products in 64 bits.
constexpr std::uint64_t kMost = std::uint64_t{1} << 40;

// As it travels.
struct Header {
  std::int32_t pid;
  std::uint32_t nonce;  // native's padding
  std::uint64_t handle_bytes;
  std::uint64_t handles;
};
static_assert(sizeof(Header) == 24);

// Behind the header from version kTyped on.
struct Kind {
  std::int32_t kind;
  std::int32_t padding;
};
constexpr std::int32_t kDescriptors = 1;
constexpr std::int32_t kFabric = 2;

char Version() { return static_cast<char>(Settings::Get().share_version()); }

// The next bytes of `payload`; zeros where it is shorter.
template <typename T>
T Take(std::string_view* payload) {
  T value{};
  if (payload->size() < sizeof value) return value;
  std::memcpy(&value, payload->data(), sizeof value);
  payload->remove_prefix(sizeof value);
  return value;
}

}  // namespace

std::string WriteSharedHandle(Bytes handle_bytes,
                              const std::vector<int>& descriptors) {
  std::string text{Version(), kHandles};
  Header header{};
  header.pid = getpid();
  header.nonce = DescriptorServer::Nonce();
  header.handle_bytes = handle_bytes;
  header.handles = descriptors.size();
  text.append(reinterpret_cast<const char*>(&header), sizeof header);
  if (Version() >= kTyped) {
    const Kind kind{kDescriptors, 0};
    text.append(reinterpret_cast<const char*>(&kind), sizeof kind);
  }
  for (const std::int32_t descriptor : descriptors) {
    text.append(reinterpret_cast<const char*>(&descriptor), sizeof descriptor);
  }
  return text;
}

Result<std::string> WriteMallocHandle(const Device& device, Address address) {
  char handle[Device::kMallocHandleBytes];
  STRATALLOC_RETURN_IF_ERROR(device.ExportMalloc(address, handle));
  return std::string{Version(), kMalloc} + std::string(handle, sizeof handle);
}

Result<ImportedMemory> ImportedMemory::Open(
    const Device& device, const std::vector<DeviceIndex>& peers,
    std::string_view handle) {
  char type = kMalloc;
  char version = kUntyped;
  if (handle.size() != Device::kMallocHandleBytes) {
    version = handle.empty() ? kUntyped : handle[0];
    if (version > kTyped) {
      return Fail(ErrorCode::kUnsupported,
                  "received sharable handle from a future version of torch "
                  "that this version does not know how to handle");
    }
    type = handle.size() < 2 ? '\0' : handle[1];
    handle.remove_prefix(std::min<std::size_t>(2, handle.size()));
  }
  ImportedMemory memory(device);
  if (type == kMalloc && handle.size() == Device::kMallocHandleBytes) {
    STRATALLOC_ASSIGN_OR_RETURN(memory.address_,
                                device.OpenMalloc(handle.data()));
    return memory;
  }
  if (type != kHandles) {
    return Fail(ErrorCode::kInvalidArgument,
                "unexpected or illformed shareable handle type");
  }
  if (Status status = memory.OpenHandles(peers, handle, version >= kTyped);
      !status) {
    memory.Unmap();
    return tl::unexpected(status.error());
  }
  return memory;
}

Status ImportedMemory::OpenHandles(const std::vector<DeviceIndex>& peers,
                                   std::string_view payload, bool typed) {
  const Header header = Take<Header>(&payload);
  // Without a kind its length names it: native's setting for it is each
  // process's own.
  const std::int32_t kind = typed ? Take<Kind>(&payload).kind
                            : payload.size() == header.handles * sizeof(int)
                                ? kDescriptors
                                : kFabric;
  const bool descriptors = kind == kDescriptors;
  const std::size_t each = descriptors ? sizeof(int) : kFabricBytes;
  if (header.handles == 0 || header.handles > kMost ||
      header.handle_bytes == 0 || header.handle_bytes > kMost ||
      header.handle_bytes * header.handles > kMost ||
      (!descriptors && kind != kFabric) ||
      payload.size() != header.handles * each) {
    return Fail(ErrorCode::kInvalidArgument,
                "unexpected or illformed shareable handle");
  }
  handle_bytes_ = header.handle_bytes;
  DescriptorSource source(header.pid, header.nonce);
  for (std::uint64_t i = 0; i < header.handles; ++i) {
    if (!descriptors) {
      STRATALLOC_ASSIGN_OR_RETURN(
          const PhysicalHandle handle,
          device_.ImportFabric(payload.data() + i * kFabricBytes));
      handles_.push_back(handle);
      continue;
    }
    std::int32_t theirs = -1;
    std::memcpy(&theirs, payload.data() + i * sizeof theirs, sizeof theirs);
    STRATALLOC_ASSIGN_OR_RETURN(const FileDescriptor mine, source.Take(theirs));
    STRATALLOC_ASSIGN_OR_RETURN(const PhysicalHandle handle,
                                device_.ImportDescriptor(mine.get()));
    handles_.push_back(handle);
  }
  reserved_ = handle_bytes_ * handles_.size();
  Result<Address> address = device_.ReserveAddress(reserved_);
  if (!address) {
    reserved_ = 0;
    return tl::unexpected(address.error());
  }
  address_ = *address;
  for (PhysicalHandle handle : handles_) {
    STRATALLOC_RETURN_IF_ERROR(
        device_.Map(address_ + mapped_ * handle_bytes_, handle_bytes_, handle));
    ++mapped_;
  }
  return device_.GrantAccess(address_, mapped_ * handle_bytes_, peers);
}

Status ImportedMemory::Unmap() {
  Status first;
  const auto note = [&](Status status) {
    if (!status && first) first = status;
  };
  for (; mapped_ > 0; --mapped_) {
    note(
        device_.Unmap(address_ + (mapped_ - 1) * handle_bytes_, handle_bytes_));
  }
  for (PhysicalHandle handle : handles_) note(device_.ReleaseHandle(handle));
  handles_.clear();
  if (reserved_ != 0) note(device_.FreeAddress(address_, reserved_));
  reserved_ = 0;
  return first;
}

Status ImportedMemory::Close() {
  if (handles_.empty()) return device_.CloseMalloc(address_);
  // Unmapping does not wait for kernels that still read here.
  STRATALLOC_RETURN_IF_ERROR(device_.SynchronizeDevice());
  return Unmap();
}

Status ImportedMemory::Grant(DeviceIndex peer) const {
  if (mapped_ == 0) return {};
  return device_.GrantAccess(address_, mapped_ * handle_bytes_, {peer});
}

}  // namespace stratalloc
