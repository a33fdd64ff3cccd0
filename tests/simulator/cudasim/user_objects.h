// SPDX-License-Identifier: Apache-2.0
//
// user_objects.h: cudaUserObject: something of the program's that graphs keep
// alive. References are counted; when the last is gone, the destructor is
// queued for Run(), which calls it without the simulator's lock.
//
// Thread-safety: called under the simulator's lock, but for RunDestructors.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_USER_OBJECTS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_USER_OBJECTS_H_

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/simulator/cudasim/status.h"

namespace cudasim {

struct UserObject {
  void* pointer = nullptr;
  void (*destroy)(void*) = nullptr;
  unsigned long references = 0;
};

// Whose references a graph or an executable graph owns.
using UserReferences = std::map<UserObject*, unsigned long>;

class UserObjects {
 public:
  UserObject* Create(void* pointer, void (*destroy)(void*), unsigned count) {
    auto object = std::make_unique<UserObject>();
    object->pointer = pointer;
    object->destroy = destroy;
    object->references = count;
    UserObject* const handle = object.get();
    all_[handle] = std::move(object);
    return handle;
  }
  Status Retain(UserObject* object, unsigned long count) {
    if (count == 0 || !all_.contains(object)) return kInvalidValue;
    object->references += count;
    return kOk;
  }
  Status Release(UserObject* object, unsigned long count) {
    auto found = all_.find(object);
    if (count == 0 || found == all_.end() || object->references < count) {
      return kInvalidValue;
    }
    object->references -= count;
    if (object->references == 0) {
      finished_.push_back(std::move(found->second));
      all_.erase(found);
    }
    return kOk;
  }
  void RetainAll(const UserReferences& users) {
    for (const auto& [object, count] : users) (void)Retain(object, count);
  }
  void ReleaseAll(UserReferences* users) {
    for (const auto& [object, count] : *users) (void)Release(object, count);
    users->clear();
  }

  // Unlocks `lock`, calls the destructors that are due.
  void RunDestructors(std::unique_lock<std::mutex>& lock) {
    const auto finished = std::move(finished_);
    finished_.clear();
    lock.unlock();
    for (const auto& object : finished) object->destroy(object->pointer);
  }

 private:
  std::unordered_map<UserObject*, std::unique_ptr<UserObject>> all_;
  std::vector<std::unique_ptr<UserObject>> finished_;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_USER_OBJECTS_H_
