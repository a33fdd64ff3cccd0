// SPDX-License-Identifier: Apache-2.0
// The engine moves handles between tiers: it answers the allocator's Reclaim,
// the op guard's EnterOperator, the planner's look ahead, and evict/restore
// asked for by name. Rules: tiering/README.md; the states of a handle:
// allocator/RESIDENCY.md.
//
// One step at a time of each device: its arbiter (LockRank::kArbiter) is held
// for it, across our own copies and disk I/O, and released while an eviction
// waits for the program's streams. Device locks are taken inside it. Threads
// that need room take turns (admission.h): they try under the arbiter, and
// between tries hold neither a lock nor a pin.
// Thread-safety: every public method, from any thread, with or without the
// GIL; only OnPressure and MustHandOut never wait.
// Lifetime: as long as the process. After fork the child's engine is off.
#ifndef STRATALLOC_TIERING_ENGINE_ENGINE_H_
#define STRATALLOC_TIERING_ENGINE_ENGINE_H_

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "allocator/base/clock.h"
#include "allocator/base/mutex.h"
#include "allocator/device_allocator.h"
#include "tiering/engine/access.h"
#include "tiering/engine/admission.h"
#include "tiering/engine/engine_counters.h"
#include "tiering/engine/eviction.h"
#include "tiering/engine/leaver.h"
#include "tiering/engine/lower_copies.h"
#include "tiering/engine/mover_thread.h"
#include "tiering/engine/planner.h"
#include "tiering/engine/tiered_device.h"

namespace stratalloc {

class Engine final : public Reclaimer {
 public:
  struct Options {
    LowerCopies::Options lower;
    // They act from the first request that a device could not serve.
    double gpu_offload_threshold = 0.85;
    double gpu_reload_threshold = 0.70;
    bool under_pressure = false;  // from the start: the program asked for it
    // A MoverThread moves pages ahead of use and relieves pressure; tests that
    // want every step in order switch it off.
    bool background = true;
    // See Admission::Options; 0 = its own. calm_ns: see MoveAhead.
    std::int64_t quiet_ns = 0, running_ns = 0, busy_ns = 0, calm_ns = 0;
    // The clock of threads that wait for room.
    std::function<std::int64_t()> now_ns = &NowNs;
  };

  explicit Engine(Options options);
  ~Engine() override;  // for tests

  // Before the device can be found, once: makes streams, tiers and the checksum
  // kernel for it. On failure the device takes no part: nothing of it is ever
  // evicted, and its captures are minded all the same. Nor does a device that
  // is added after SwitchOff(), which succeeds. `largest_handle`: of any
  // device that may come later; the staging buffers hold one of those.
  Status AddDevice(DeviceAllocator& device, Bytes largest_handle = 0);
  // Why it takes no part; "" if it does. Once it can be found.
  const std::string& WhyNot(const DeviceAllocator& device) const {
    return devices_[static_cast<int>(device.device().index())].why_not;
  }

  // Reclaimer.
  bool Reclaim(DeviceIndex device, MemoryRequest& request) override;
  bool RestoreSpace(DeviceIndex device, Address address) override;
  void OnEmptyCache(DeviceIndex device) override;
  Bytes ReclaimCold(DeviceIndex device, Bytes bytes) override;
  bool IsCrowded() const override { return admission_.crowded(); }
  bool UnderPressure(DeviceIndex device) const override {
    return devices_[static_cast<int>(device)].under_pressure.load(
        std::memory_order_relaxed);
  }
  double PressureThreshold() const override {
    return options_.gpu_offload_threshold;
  }
  void OnPressure(DeviceIndex device, Bytes allocated, Bytes limit) override;
  void NotePressure(DeviceIndex device) override;
  const char* LastRefusal(DeviceIndex device) override;

  // The op guard. Enter makes every accessed byte resident on its device,
  // orders `stream` after the copies that brought them, and pins them until
  // Leave. On failure nothing stays pinned and Leave must not be called.
  Status EnterOperator(StreamId stream, const char* name,
                       std::span<const Access> accesses);
  void LeaveOperator();
  // The innermost operator ends; what it pinned stays until LeaveCall
  // (operator_thread.h has what a call is).
  void LeaveIntoCall();
  void LeaveCall();

  // The blocks that hold `ranges`, of any devices, are brought back together
  // and stay until they are freed or unpinned; `out` has a pin for each, none
  // (serial 0) where nothing could leave. kOutOfMemory and no pin if they do
  // not fit together. `name` is for messages. Waits, as an operator does.
  // REQUIRES: out.size() == ranges.size().
  Status PinBlocks(const char* name, PinReason reason,
                   std::span<const AddressRange> ranges,
                   std::span<BlockPin> out);
  // See DeviceAllocator::UnpinBlock. A pin of a freed block is ignored.
  void UnpinBlock(const BlockPin& pin, bool unobserved);
  // data_ptr() returns this address: its block is brought back and stays until
  // newer ones take an eighth of the device, or a thread would be refused. May
  // wait.
  void HandOut(Address address);
  // False: HandOut would do nothing more; the block is the newest of these.
  // Never waits.
  bool MustHandOut(Address address);

  // DeviceAllocator::BeginAllocateToPool, of a capture that is about to begin
  // unless `filter` accepts `current` at once. `reads`: what the graph will
  // read that no operator names. It is brought back first; it, and all that
  // this thread's operators use now, stays until the pool's last use goes. Of a
  // device under pressure everything else leaves before a capture, during which
  // nothing can. On failure no route is set.
  Status BeginAllocateToPool(DeviceAllocator& device, PoolId pool,
                             std::function<bool(StreamId)> filter,
                             StreamId current, std::span<const Access> reads);

  // Empty `ranges` = everything evictable. Returns the bytes moved. `below`:
  // to that tier alone; with kDisk what lies on the host goes down as well.
  // kUnsupported, with the reason, for a device that takes no part and a tier
  // that there is not.
  Result<Bytes> Evict(DeviceAllocator& device,
                      std::span<const AddressRange> ranges,
                      Below below = Below::kEither);
  Result<Bytes> Restore(DeviceAllocator& device,
                        std::span<const AddressRange> ranges);
  // Everything evictable of every device that takes part, past those that
  // fail: the first one's error. kUnsupported, with the first one's reason, if
  // devices were added and none takes part.
  Result<Bytes> EvictAll(Below below = Below::kEither);
  // Where the blocks that hold `ranges` may lie from now on (tier_rule.h). A
  // tier that there is not is no place: what no tier may have stays. What lies
  // where it may not goes down or comes back. Fails, and then the rules are as
  // they were: kOutOfMemory, no room for what must come back; as a tier does.
  // On a device that takes no part every rule holds.
  Status SetRule(DeviceAllocator& device, std::span<const AddressRange> ranges,
                 TierRule rule);

  // The copies of freed blocks go, on every device. Else the next eviction or
  // restore does that.
  void CollectDropped();
  Bytes RoomBelow() override;
  Bytes RoomOn(TierId tier) override;
  void Order(std::uint32_t now,
             std::vector<EvictableHandle>* leaving) const override;
  Result<Bytes> RestoreAll();

  EngineCounters Counters() const;
  // The host tier's never wait; while something moves, as far as it has come.
  Bytes HostUsed() const;
  Bytes HostPeak() const;  // of what was used, not of what was pinned for it
  Bytes HostReserved() const;
  Bytes HostReservedPeak() const;
  Bytes DiskUsed() const;
  std::string DiskMode() const;
  Status CheckInvariants(DeviceAllocator& device);

  // Of what goes to the disk from now on. Any thread; never waits.
  void SetDiskCodec(DiskCodec codec) { lower_.SetDiskCodec(codec); }

  // At the end of the process: no background work from here on.
  void StopBackground();

  // Brings back all that is evicted, of every device, and moves nothing from
  // then on, for good: operators that begin later pin nothing. The copies below
  // the device are freed. Returns the bytes that came back; 0 once it is off.
  // Fails, and then tiering goes on with what has come back on the device:
  // kUnsupported while a stream captures, kOutOfMemory if not all fits,
  // kCorrupt if bytes were lost on disk.
  Result<Bytes> SwitchOff();

  // In the child of a fork: forget the ring, never touch the device again.
  void AbandonAfterFork();
  bool off() const { return off_.load(std::memory_order_relaxed) != Off::kNo; }

 private:
  enum class Room { kEvict, kOnlyFree };  // what a restore does without room
  // What may be evicted: all that is not in use, or what is cold for good.
  enum class Evictable { kAll, kCold };

  // Why nothing moves: SwitchOff, or the process is a fork.
  enum class Off : std::uint8_t { kNo, kSwitched, kInFork };
  bool switched_off() const {
    return off_.load(std::memory_order_relaxed) == Off::kSwitched;
  }
  Status CheckOn() const;  // fails with why nothing moves
  // switch.cc
  Result<Bytes> SwitchOffUnderArbiters();
  Status CheckNoCapture();
  Status BringBackLocked(TieredDevice& state) REQUIRES(state.arbiter);

  TieredDevice* StateOf(const DeviceAllocator& device);
  Result<Bytes> MoveAll(
      const std::function<Result<Bytes>(DeviceAllocator&)>& verb);

  // reclaim.cc
  Admission::World LookAround();
  // The ticket of what this thread is doing now.
  std::uint64_t TicketOf(OperatorThread& thread);
  // The devices of what the thread's operators pin, as bits by ordinal.
  std::uint64_t PinnedOn(OperatorThread& thread) const;
  // This thread's wait for room.
  class Waiting;
  // Pins again what the operators of `thread` use, and brings back what of it
  // left while its pins were suspended. kOutOfMemory: not now; the caller
  // suspends again. Takes the arbiters of the devices in turn.
  Status Resume(OperatorThread& thread);
  Status ResumeLocked(TieredDevice& state, OperatorThread& thread)
      REQUIRES(state.arbiter);

  // evict.cc; the device's arbiter held
  class WithoutArbiter;  // for waits: while it lives the arbiter is released
  class RoomSearch;      // room_search.cc
  Leaver& LeaverOf(const TieredDevice& state) {
    return *leavers_[static_cast<std::size_t>(&state - devices_.data())];
  }
  Planner& PlannerOf(const TieredDevice& state) {
    return *planners_[static_cast<std::size_t>(&state - devices_.data())];
  }
  void WakeMover(const TieredDevice& state);
  // See Leaver. They release the arbiter while they wait.
  Bytes ChooseLocked(TieredDevice& state, const std::vector<HandleRef>& victims,
                     Below below, const std::shared_ptr<LeaveTally>& tally)
      REQUIRES(state.arbiter);
  bool AwaitLocked(TieredDevice& state) REQUIRES(state.arbiter);
  Status AwaitSomeLocked(TieredDevice& state) REQUIRES(state.arbiter);
  void AwaitArbiterLocked(TieredDevice& state, Mutex& other)
      STRATALLOC_TS(no_thread_safety_analysis);
  // Until `target` bytes came free, or nothing can leave. Not those of `keep`.
  // `stood_still`: set, and the search ends, once the chosen streams do; if it
  // was set before, the search waits for them.
  Bytes EvictVictimsLocked(TieredDevice& state, Bytes target,
                           const std::vector<Address>& keep, Evictable which,
                           bool* stood_still = nullptr) REQUIRES(state.arbiter);
  // Those that may leave; the bytes that left.
  Bytes EvictTheseLocked(TieredDevice& state,
                         const std::vector<HandleRef>& handles, Below below)
      REQUIRES(state.arbiter);
  // Ends what leaves, or if it is one of `handles`; waits for copies alone.
  void FinishLeavingLocked(TieredDevice& state) REQUIRES(state.arbiter);
  void FinishLeavingLocked(TieredDevice& state,
                           std::span<const HandleRef> handles)
      REQUIRES(state.arbiter);
  // What lies on the host of `ranges`, but for `handles`: bytes that went down.
  Bytes LowerLocked(TieredDevice& state, std::span<const AddressRange> ranges,
                    const std::vector<HandleRef>& handles)
      REQUIRES(state.arbiter);

  // rules.cc
  // Those that lie where they may not, and must come back.
  static std::vector<HandleRef> MustReturnLocked(
      DeviceAllocator& device, const std::vector<HandleRef>& handles);
  // What else lies where it may not goes down, or is given up where there is
  // another copy. What fails has moved nothing.
  Status GoDownLocked(TieredDevice& state,
                      const std::vector<HandleRef>& handles)
      REQUIRES(state.arbiter);
  // Copies where they may not lie are given up. REQUIRES: none is the only one
  // of evicted bytes.
  Status GiveUpForbiddenLocked(TieredDevice& state,
                               const std::vector<HandleRef>& handles)
      REQUIRES(state.arbiter);
  // See Restoration::Run. For room, others than `keep` leave.
  Status RestoreBatchLocked(TieredDevice& state,
                            const std::vector<HandleRef>& handles, Room room,
                            const std::vector<Address>& keep, bool planned)
      REQUIRES(state.arbiter);

  // guard.cc
  // The slow half of EnterOperator: `handles` are the newest pins.
  Status Admit(StreamId stream, const char* name,
               std::span<const GuardedHandle> handles);
  // Its steps: those that are here already are used at once; no device could
  // ever hold them; the wait for room.
  Result<bool> AcceptAll(StreamId stream,
                         std::span<const GuardedHandle> handles);
  Status CheckFits(const char* name, std::span<const GuardedHandle> handles);
  Status WaitForRoom(StreamId stream, const char* name,
                     std::span<const GuardedHandle> handles);
  // Does this operator wait behind refused threads, though all that it uses
  // may be there?
  bool Queues(const OperatorThread& thread) const;
  DeviceAllocator* DeviceOf(Address address) const;
  // Notes the use of what is on the device and orders `stream` behind copies on
  // their way. False: a page is missing, or the arbiter's holder decides.
  Result<bool> Accept(DeviceAllocator& device, StreamId stream,
                      std::span<const GuardedHandle> handles);
  // kOutOfMemory: not now, for want of `*lack`.
  Status RestoreForLocked(TieredDevice& state, const char* name,
                          std::span<const GuardedHandle> handles,
                          Admission::Lack* lack) REQUIRES(state.arbiter);
  class AccessWalk;
  void NoteUse(HandleRef handle, std::uint64_t stream_bit, bool written,
               std::uint32_t now, std::size_t place = 0);

  // capture.cc
  // True if `stream` captures into a pool of the device.
  bool KeepForRoutedCapture(DeviceAllocator& device, StreamId stream,
                            OperatorThread& thread);
  // If `stream`, of this device, captures without torch's knowing.
  void KeepForRawCapture(DeviceAllocator& device, StreamId stream,
                         OperatorThread& thread);

  // plan.cc
  // An operator or a call of this thread has ended.
  void NoteLeft();
  // What it noted goes to the planners.
  void PassUsesOn();
  // The mover thread's: what the plan has leave leaves, what is used next comes
  // back as far as there is room. True if there may be more to do soon.
  bool MoveAhead(TieredDevice& state) EXCLUDES(state.arbiter);
  // True if the plan went on.
  bool LeaveByPlanLocked(TieredDevice& state) REQUIRES(state.arbiter);
  bool FetchAhead(TieredDevice& state) REQUIRES(state.arbiter);
  void RelievePressure(TieredDevice& state);

  const Options options_;
  Admission admission_;
  std::atomic<Off> off_{Off::kNo};  // set under all arbiters, or in a fork
  std::array<TieredDevice, kMaxDevices> devices_;  // by ordinal
  DeviceList all_;     // whose streams may capture, and run graphs
  DeviceList movers_;  // of them those that take part
  std::array<std::unique_ptr<Leaver>, kMaxDevices> leavers_;  // of movers_
  std::array<std::unique_ptr<Planner>, kMaxDevices> planners_;

  Mutex joining_{LockRank::kJoining};  // AddDevice and SwitchOff
  LowerCopies lower_;
  // For threads that read its use. nullptr before there is one.
  std::atomic<const HostTier*> host_{nullptr};
  // True once anything was chosen to leave, or a thread waited for room: before
  // that operators note nothing when they leave.
  std::atomic<bool> attentive_{false};
  std::atomic<std::uint64_t> unpinned_{0};  // pins taken back (pins.cc)
  std::array<std::unique_ptr<MoverThread>, kMaxDevices> threads_;  // of movers_
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_ENGINE_H_
