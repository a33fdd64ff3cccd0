// SPDX-License-Identifier: Apache-2.0
// The registered owner of pins on what goes on by itself (collectives).
//
// The engine asks it whenever it chooses victims, and each thread that waits
// for room: the owner then unpins what is complete.
//
// Thread-safety: every method.
// Locks: Run() calls the owner with the caller's locks; the caller must hold
// none that UnpinBlock takes (the device lock). UnderWay() is one load.
// Errors: none.
// Lifetime: as long as the process.
#ifndef STRATALLOC_ALLOCATOR_STATE_PIN_POLL_H_
#define STRATALLOC_ALLOCATOR_STATE_PIN_POLL_H_

namespace stratalloc {

class PinPoll {
 public:
  using Poll = void (*)();
  using Asked = int (*)();                      // 0: no
  static void Use(Poll poll, Asked under_way);  // nullptr: none
  static void Run();
  // Are there pins that may be taken back without any thread of the program
  // getting on?
  static bool UnderWay();
  // Is this thread inside Run()? It may hold the arbiter then.
  static bool IsRunning();
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_STATE_PIN_POLL_H_
