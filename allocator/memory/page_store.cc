// SPDX-License-Identifier: Apache-2.0
#include "allocator/memory/page_store.h"

#include <algorithm>
#include <utility>

#include "allocator/base/check.h"

namespace stratalloc {

// One call of Map: positions are served one after another, and on the first
// refusal all that it did is taken back.
class PageStore::Mapping {
 public:
  Mapping(PageStore& store, HandleRegion& region, Address lo, Address hi,
          const User& user)
      : store_(store), pool_(store.physical_), region_(region), user_(user) {
    for (std::uint64_t i = region.IndexOf(lo); region.AddressOf(i) < hi; ++i) {
      if (region.entries[i].state.load() == HandleState::kUnmapped) {
        wanted_.push_back(HandleRef{&region, i});
      }
    }
    kept_.resize(wanted_.size());
  }

  Bytes needed() const { return wanted_.size() * region_.handle_bytes; }

  // Memory that is still mapped where it is wanted first, so that no other
  // position here takes it.
  void TakeBack() {
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      PhysicalMemory*& memory = SlotOf(i);
      kept_[i] = memory != nullptr && pool_.IsGranted(&memory) &&
                 pool_.TakeBack(memory, user_.own, user_.idle);
    }
  }

  bool MapFresh(Bytes limit, Answer* answer) {
    for (; fresh_ < wanted_.size(); ++fresh_) {
      if (!kept_[fresh_] && !MapOne(limit, answer)) return false;
    }
    return true;
  }

  // By ranges: one call costs as much as one for a handle.
  bool Grant(bool keeps, Answer* answer) {
    for (std::size_t i = 0; i < wanted_.size();) {
      const Address start = wanted_[i].address();
      const std::size_t first = i;
      Address end = start;
      for (; i < wanted_.size() && !kept_[i] && wanted_[i].address() == end;
           ++i) {
        end += region_.handle_bytes;
      }
      if (end == start) {
        ++i;
        continue;
      }
      if (!Note(GrantRange(start, end - start), answer)) return false;
      for (std::size_t one = first; one < i; ++one) {
        pool_.NoteGranted(&SlotOf(one));
        // Should a later range be refused, the next try begins there.
        if (keeps) kept_[one] = true;
      }
    }
    return true;
  }

  std::vector<HandleRef> Commit() {
    for (HandleRef handle : wanted_) {
      HandleEntry& entry = handle.entry();
      entry.Begin();
      entry.has_copy.store(false);
      entry.physical->used_at = handle.address();
      entry.state.store(HandleState::kResident);
    }
    return std::move(wanted_);
  }

  // Used by nobody: what was mapped is unmapped again without a fence. What the
  // driver refuses to unmap stays, without rights.
  void Undo() {
    std::vector<PhysicalMemory**> in_vain;
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      if (!kept_[i] && i >= fresh_) continue;
      PhysicalMemory*& memory = SlotOf(i);
      if (!kept_[i]) in_vain.push_back(&memory);
      pool_.Put(memory, memory->used_streams);
    }
    (void)pool_.Unmap(std::move(in_vain));
  }

 private:
  PhysicalMemory*& SlotOf(std::size_t i) { return wanted_[i].entry().physical; }

  // Did this driver call succeed? If not, and for another reason than memory,
  // the answer says why.
  template <typename R>
  static bool Note(const R& result, Answer* answer) {
    if (!result && result.error().code != ErrorCode::kOutOfMemory) {
      answer->error = result.error();
    }
    return result.has_value();
  }

  bool MapOne(Bytes limit, Answer* answer) {
    const HandleRef handle = wanted_[fresh_];
    PhysicalMemory*& slot = SlotOf(fresh_);
    Result<PhysicalMemory*> memory =
        pool_.Take(region_.handle_bytes, limit, user_.own, user_.idle);
    if (!Note(memory, answer)) {
      answer->lacking = (wanted_.size() - fresh_) * region_.handle_bytes;
      return false;
    }
    bool failed = false;
    if (slot != nullptr && user_.idle(handle.entry().used_streams.load())) {
      failed = !Note(pool_.Unmap(&slot), answer);
    }
    const bool busy = slot != nullptr && !failed;
    if (busy) answer->mapped = Mapped::kPlaceBusy;
    if (!busy && !failed &&
        Note(pool_.Map(handle.address(), *memory, &slot), answer)) {
      return true;
    }
    pool_.Put(*memory, (*memory)->used_streams);
    return false;
  }

  // They take page tables, which take memory of the card: where the driver has
  // none left, it gets what is free here.
  Status GrantRange(Address address, Bytes bytes) {
    const auto grant = [&] {
      return store_.device_.GrantAccess(address, bytes, store_.peers_);
    };
    Status granted = grant();
    if (!granted && granted.error().code == ErrorCode::kOutOfMemory &&
        pool_.ReleaseFree(user_.idle) > 0) {
      granted = grant();
    }
    return granted;
  }

  PageStore& store_;
  HandlePool& pool_;
  HandleRegion& region_;
  const User& user_;
  std::vector<HandleRef> wanted_;
  std::vector<bool> kept_;  // has its memory, with rights
  std::size_t fresh_ = 0;   // positions that MapFresh has served
};

PageStore::Answer PageStore::Map(HandleRegion& region, Address lo, Address hi,
                                 Bytes limit, bool keeps, const User& user) {
  Answer answer;
  Mapping mapping(*this, region, lo, hi, user);
  // Beyond the limit nothing is mapped in vain.
  limit -= std::min(limit, unmanaged_bytes());
  if (const Bytes used = physical_.used_bytes() + mapping.needed();
      used > limit) {
    answer.lacking = used - limit;
    return answer;
  }
  mapping.TakeBack();
  if (mapping.MapFresh(limit, &answer) && mapping.Grant(keeps, &answer)) {
    answer.arrived = mapping.Commit();
    answer.mapped = Mapped::kYes;
  } else {
    mapping.Undo();
  }
  return answer;
}

void PageStore::GiveUp(HandleRef handle, PhysicalMemory* memory,
                       std::uint64_t used_streams, bool keeps) {
  HandleEntry& entry = handle.entry();
  entry.state.store(HandleState::kUnmapped);
  entry.used_streams.store(used_streams);
  // Where bytes are away a stray access must fault. Where the driver refuses,
  // the mapping is kept as others are.
  if (entry.physical != nullptr && (!keeps || entry.live > 0)) {
    (void)physical_.Unmap(&entry.physical);
  }
  physical_.Put(memory, used_streams);
}

bool PageStore::DropKept(HandleRegion& region, Address lo, Address hi,
                         const StreamsIdle& idle) {
  std::vector<PhysicalMemory**> kept;
  for (std::uint64_t i = region.IndexOf(lo); region.AddressOf(i) < hi; ++i) {
    HandleEntry& entry = region.entries[i];
    if (entry.physical == nullptr) continue;
    if (!idle(entry.used_streams.load())) return false;
    kept.push_back(&entry.physical);
  }
  return physical_.Unmap(std::move(kept)).has_value();
}

Result<PhysicalMemory*> PageStore::Take(Bytes bytes, Bytes limit,
                                        const StreamsIdle& idle) {
  Result<PhysicalMemory*> memory = physical_.Take(
      bytes, limit - std::min(limit, unmanaged_bytes()), /*own=*/0, idle);
  if (memory) taken_bytes_ += bytes;
  return memory;
}

void PageStore::PutTaken(PhysicalMemory* memory) {
  taken_bytes_ -= memory->bytes;
  physical_.Put(memory, /*used_streams=*/0);
}

Status PageStore::MapTaken(std::span<const HandleRef> run,
                           std::span<PhysicalMemory* const> memory) {
  std::vector<PhysicalMemory**> mapped;
  Status status;
  for (std::size_t i = 0; status && i < run.size(); ++i) {
    PhysicalMemory** const slot = &run[i].entry().physical;
    STRATALLOC_CHECK(
        run[i].address() == run.front().address() + i * run[i].bytes(),
        "rights are granted by ranges");
    if (*slot != nullptr) status = physical_.Unmap(slot);  // was refused before
    if (status) status = physical_.Map(run[i].address(), memory[i], slot);
    if (status) mapped.push_back(slot);
  }
  if (status) {
    status = device_.GrantAccess(run.front().address(),
                                 run.size() * run.front().bytes(), peers_);
  }
  if (!status) {
    (void)physical_.Unmap(std::move(mapped));  // nobody has seen it
    return status;
  }
  for (std::size_t i = 0; i < run.size(); ++i) {
    physical_.NoteGranted(&run[i].entry().physical);
    memory[i]->used_at = run[i].address();
    taken_bytes_ -= run[i].bytes();
  }
  return {};
}

bool PageStore::IsPeer(DeviceIndex peer) const {
  return std::find(peers_.begin(), peers_.end(), peer) != peers_.end();
}

Status PageStore::GrantPeer(HandleRegion& region, Address lo, Address hi,
                            DeviceIndex peer) {
  const std::uint64_t end = region.IndexOf(hi - 1) + 1;
  for (std::uint64_t i = region.IndexOf(lo); i < end;) {
    const std::uint64_t first = i;
    while (i < end && region.entries[i].physical != nullptr) ++i;
    if (i == first) {
      ++i;
      continue;
    }
    STRATALLOC_RETURN_IF_ERROR(device_.GrantAccess(
        region.AddressOf(first), (i - first) * region.handle_bytes, {peer}));
  }
  return {};
}

bool PageStore::HasDescriptor(HandleRef handle) const {
  const PhysicalMemory* memory = handle.entry().physical;
  return memory != nullptr && physical_.HasDescriptor(*memory);
}

bool PageStore::IsGranted(HandleRef handle) const {
  PhysicalMemory*& memory = handle.entry().physical;
  return memory != nullptr && !memory->free && physical_.IsGranted(&memory);
}

const char* PageStore::CheckInvariants(Bytes mapped) const {
  if (!physical_.CheckInvariants()) {
    return "free memory is listed once and knows its mappings";
  }
  if (mapped - unmanaged_bytes_ + physical_.free_bytes() + taken_bytes_ !=
      physical_.created_bytes()) {
    return "created = mapped - unmanaged + free + taken physical handles";
  }
  return nullptr;
}

}  // namespace stratalloc
