// SPDX-License-Identifier: Apache-2.0
#include "allocator/cuda/handle_pool.h"

#include <algorithm>
#include <utility>

#include "allocator/base/check.h"

namespace stratalloc {

HandlePool::~HandlePool() {
  // Whoever wants the driver to have its memory back called ReleaseFree.
  for (auto& [bytes, head] : free_) {
    while (head != nullptr) delete std::exchange(head, head->next);
  }
}

Result<PhysicalMemory*> HandlePool::Take(Bytes bytes, Bytes limit,
                                         std::uint64_t own,
                                         const StreamsIdle& idle) {
  // What is free here is cached, not used: the limit is for the rest. It may
  // have been lowered since.
  if (used_bytes() + bytes > limit) {
    return Fail(ErrorCode::kOutOfMemory,
                "the limit of " + FormatBytes(limit) + " is reached");
  }
  if (created_bytes_ > limit) ReleaseFree(idle, limit);
  PhysicalMemory*& head = free_[bytes];
  for (PhysicalMemory* memory = head; memory != nullptr;
       memory = memory->next) {
    if (TakeBack(memory, own, idle)) return memory;
  }
  if (created_bytes_ + bytes > limit) ReleaseFree(idle);
  if (created_bytes_ + bytes > limit) {
    return Fail(ErrorCode::kOutOfMemory,
                "memory that is free is still in use by a stream");
  }
  Result<PhysicalHandle> handle = device_.CreateHandle(bytes);
  if (!handle && free_bytes_ > 0 && ReleaseFree(idle) > 0) {
    handle = device_.CreateHandle(bytes);
  }
  if (!handle) {
    refused_ = handle.error().code == ErrorCode::kOutOfMemory;
    return tl::unexpected(handle.error());
  }
  created_bytes_ += bytes;
  auto* memory = new PhysicalMemory;
  memory->handle = *handle;
  memory->bytes = bytes;
  return memory;
}

bool HandlePool::TakeBack(PhysicalMemory* memory, std::uint64_t own,
                          const StreamsIdle& idle) {
  if (!memory->free) return false;
  const std::uint64_t others = memory->used_streams & ~own;
  if (others != 0 && !idle(others)) return false;
  Unlink(memory);
  return true;
}

void HandlePool::Put(PhysicalMemory* memory, std::uint64_t used_streams) {
  STRATALLOC_CHECK(!memory->free, "memory is put back once");
  memory->free = true;
  memory->used_streams = used_streams;
  memory->put = ++last_put_;
  PhysicalMemory*& head = free_[memory->bytes];
  memory->prev = nullptr;
  memory->next = head;
  if (head != nullptr) head->prev = memory;
  head = memory;
  free_bytes_ += memory->bytes;
}

void HandlePool::Unlink(PhysicalMemory* memory) {
  if (memory->prev != nullptr) {
    memory->prev->next = memory->next;
  } else {
    free_[memory->bytes] = memory->next;
  }
  if (memory->next != nullptr) memory->next->prev = memory->prev;
  memory->next = memory->prev = nullptr;
  memory->free = false;
  memory->used_at = 0;  // until whoever has it now uses it
  free_bytes_ -= memory->bytes;
}

Status HandlePool::Map(Address address, PhysicalMemory* memory,
                       PhysicalMemory** slot) {
  STRATALLOC_CHECK(*slot == nullptr, "a position has one mapping");
  STRATALLOC_RETURN_IF_ERROR(
      device_.Map(address, memory->bytes, memory->handle));
  memory->mappings.push_back({address, slot});
  *slot = memory;
  return {};
}

PhysicalMemory::Mapping& HandlePool::MappingOf(PhysicalMemory** slot) {
  auto& mappings = (*slot)->mappings;
  auto mapping =
      std::find_if(mappings.begin(), mappings.end(),
                   [&](const auto& mapping) { return mapping.slot == slot; });
  STRATALLOC_CHECK(mapping != mappings.end(), "a slot is listed");
  return *mapping;
}

Status HandlePool::Unmap(std::vector<PhysicalMemory**> slots) {
  const auto at = [](PhysicalMemory** slot) { return MappingOf(slot).address; };
  std::sort(slots.begin(), slots.end(),
            [&](auto* a, auto* b) { return at(a) < at(b); });
  Status first;
  for (std::size_t i = 0; i < slots.size();) {
    const Address start = at(slots[i]);
    const std::size_t run = i;
    Address end = start;
    for (; i < slots.size() && at(slots[i]) == end; ++i) {
      end += (*slots[i])->bytes;
    }
    if (Status unmapped = device_.Unmap(start, end - start); !unmapped) {
      if (first) first = unmapped;
      continue;
    }
    for (std::size_t one = run; one < i; ++one) {
      auto& mappings = (*slots[one])->mappings;
      MappingOf(slots[one]) = mappings.back();
      mappings.pop_back();
      *slots[one] = nullptr;
    }
  }
  return first;
}

void HandlePool::Fenced(std::uint64_t used_streams, std::uint64_t until) {
  for (auto& [bytes, head] : free_) {
    for (PhysicalMemory* memory = head; memory != nullptr;
         memory = memory->next) {
      if (memory->put <= until) memory->used_streams &= ~used_streams;
    }
  }
}

std::uint64_t HandlePool::used_streams() const {
  std::uint64_t used_streams = 0;
  for (const auto& [bytes, head] : free_) {
    for (const PhysicalMemory* memory = head; memory != nullptr;
         memory = memory->next) {
      used_streams |= memory->used_streams;
    }
  }
  return used_streams;
}

Result<int> HandlePool::Descriptor(const PhysicalMemory& memory) {
  const auto known = descriptors_.find(memory.handle);
  if (known != descriptors_.end()) return known->second;
  STRATALLOC_ASSIGN_OR_RETURN(const int descriptor,
                              device_.ExportHandle(memory.handle));
  descriptors_.emplace(memory.handle, descriptor);
  SharedDescriptors::Add(descriptor);
  return descriptor;
}

void HandlePool::CloseDescriptors(const std::set<PhysicalHandle>& keep) {
  std::erase_if(descriptors_, [&](const auto& open) {
    if (keep.contains(open.first)) return false;
    SharedDescriptors::Close(open.second);
    return true;
  });
}

Bytes HandlePool::ReleaseFree(const StreamsIdle& idle, Bytes keep) {
  if (!idle(0)) return 0;
  const Bytes before = free_bytes_;
  std::vector<PhysicalMemory*> going;
  std::vector<PhysicalMemory**> slots;
  Bytes left = created_bytes_;
  for (auto& [bytes, head] : free_) {
    for (PhysicalMemory* memory = head; memory != nullptr && left > keep;
         memory = memory->next) {
      if (memory->used_streams != 0 && !idle(memory->used_streams)) continue;
      going.push_back(memory);
      for (const auto& mapping : memory->mappings) {
        slots.push_back(mapping.slot);
      }
      left -= bytes;
    }
  }
  // A driver that refuses one will refuse the others: a broken device.
  if (!Unmap(std::move(slots))) return 0;
  for (PhysicalMemory* memory : going) {
    if (!device_.ReleaseHandle(memory->handle)) break;
    Unlink(memory);
    if (auto open = descriptors_.find(memory->handle);
        open != descriptors_.end()) {
      SharedDescriptors::Close(open->second);
      descriptors_.erase(open);
    }
    created_bytes_ -= memory->bytes;
    delete memory;
  }
  return before - free_bytes_;
}

bool HandlePool::CheckInvariants() const {
  Bytes free = 0;
  for (const auto& [bytes, head] : free_) {
    for (const PhysicalMemory* memory = head; memory != nullptr;
         memory = memory->next) {
      free += bytes;
      if (!memory->free || memory->bytes != bytes) return false;
      for (const auto& mapping : memory->mappings) {
        if (*mapping.slot != memory) return false;
      }
    }
  }
  return free == free_bytes_ && free_bytes_ <= created_bytes_;
}

}  // namespace stratalloc
