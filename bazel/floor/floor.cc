// SPDX-License-Identifier: Apache-2.0

// Functions that systems with glibc 2.28 and GCC 8 do not have, or have under
// an older version.
//
// The compiler and its headers refer to the newest versions; a shared object
// that has these functions itself asks for no newer library. Each has the name
// of the original by an assembler label and is hidden: other libraries keep
// theirs.
//
// Thread-safety: as the originals'. Locks: none. Errors: as the originals'.

#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <new>
#include <sstream>
#include <string>

#define STRATALLOC_FLOOR(symbol) \
  __asm__(symbol) __attribute__((visibility("hidden")))

// A function that jumps to an older version of itself: glibc 2.34 gave new
// versions to what came from libdl and libpthread, unchanged, 2.29 to functions
// that no longer set errno as System V did, GCC 11 to the counting of
// exceptions, unchanged, and GCC 12 to a wait that a cancelled thread may
// leave.
#define STRATALLOC_OLDER(name, version)                                        \
  __asm__(".symver stratalloc_older_" name "," name "@" version                \
          "\n.pushsection .text\n.globl " name "\n.hidden " name               \
          "\n.type " name ",@function\n" name ":\njmp *stratalloc_older_" name \
          "@GOTPCREL(%rip)\n.size " name ",.-" name "\n.popsection")

STRATALLOC_OLDER("dladdr", "GLIBC_2.2.5");
STRATALLOC_OLDER("dlclose", "GLIBC_2.2.5");
STRATALLOC_OLDER("dlerror", "GLIBC_2.2.5");
STRATALLOC_OLDER("dlopen", "GLIBC_2.2.5");
STRATALLOC_OLDER("dlsym", "GLIBC_2.2.5");
STRATALLOC_OLDER("exp", "GLIBC_2.2.5");
STRATALLOC_OLDER("log", "GLIBC_2.2.5");
STRATALLOC_OLDER("log2", "GLIBC_2.2.5");
STRATALLOC_OLDER("pow", "GLIBC_2.2.5");
STRATALLOC_OLDER("pthread_create", "GLIBC_2.2.5");
STRATALLOC_OLDER("pthread_getname_np", "GLIBC_2.12");
STRATALLOC_OLDER("pthread_getspecific", "GLIBC_2.2.5");
STRATALLOC_OLDER("pthread_join", "GLIBC_2.2.5");
STRATALLOC_OLDER("pthread_key_create", "GLIBC_2.2.5");
STRATALLOC_OLDER("pthread_key_delete", "GLIBC_2.2.5");
STRATALLOC_OLDER("pthread_mutex_trylock", "GLIBC_2.2.5");
STRATALLOC_OLDER("pthread_once", "GLIBC_2.2.5");
STRATALLOC_OLDER("pthread_rwlock_rdlock", "GLIBC_2.2.5");
STRATALLOC_OLDER("pthread_rwlock_tryrdlock", "GLIBC_2.2.5");
STRATALLOC_OLDER("pthread_rwlock_trywrlock", "GLIBC_2.2.5");
STRATALLOC_OLDER("pthread_rwlock_unlock", "GLIBC_2.2.5");
STRATALLOC_OLDER("pthread_rwlock_wrlock", "GLIBC_2.2.5");
STRATALLOC_OLDER("pthread_setname_np", "GLIBC_2.12");
STRATALLOC_OLDER("pthread_setspecific", "GLIBC_2.2.5");
STRATALLOC_OLDER("_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE",
                 "GLIBCXX_3.4.11");

// GLIBC_2.32. shared_ptr skips atomics while a process has one thread. Our copy
// says "more than one", which is true of any process that trains.
extern char single_threaded STRATALLOC_FLOOR("__libc_single_threaded");
char single_threaded = 0;

// GLIBC_2.33. Older ones are macros around a call with the layout's version; on
// x86-64 the layout is the kernel's.
int Stat(const char* path, struct stat* to) STRATALLOC_FLOOR("stat");
int Stat(const char* path, struct stat* to) {
  return static_cast<int>(syscall(SYS_stat, path, to));
}

int Fstat(int file, struct stat* to) STRATALLOC_FLOOR("fstat");
int Fstat(int file, struct stat* to) {
  return static_cast<int>(syscall(SYS_fstat, file, to));
}

// GLIBC_2.30. The system's, where it has one; else the deadline is converted,
// as libstdc++ did before. It looks at its clock again after each return.
int TimedWait(void* condition, void* mutex,
              const timespec* deadline) __asm__("pthread_cond_timedwait");
int ClockWait(void* condition, void* mutex, clockid_t clock,
              const timespec* deadline)
    STRATALLOC_FLOOR("pthread_cond_clockwait");
int ClockWait(void* condition, void* mutex, clockid_t clock,
              const timespec* deadline) {
  static auto* const original = reinterpret_cast<decltype(&ClockWait)>(
      dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"));
  if (original != nullptr) {
    return original(condition, mutex, clock, deadline);
  }
  constexpr long kSecond = 1000000000;
  timespec now{};
  timespec converted{};
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &converted);
  converted.tv_sec += deadline->tv_sec - now.tv_sec;
  converted.tv_nsec += deadline->tv_nsec - now.tv_nsec;
  if (converted.tv_nsec < 0) {
    converted.tv_nsec += kSecond;
    --converted.tv_sec;
  } else if (converted.tv_nsec >= kSecond) {
    converted.tv_nsec -= kSecond;
    ++converted.tv_sec;
  }
  return TimedWait(condition, mutex, &converted);
}

// GLIBCXX_3.4.29.
[[noreturn]] void ThrowBadArrayNewLength()
    STRATALLOC_FLOOR("_ZSt28__throw_bad_array_new_lengthv");
void ThrowBadArrayNewLength() { throw std::bad_array_new_length(); }

// GLIBCXX_3.4.29 for `str() const &` of C++20, GLIBCXX_3.4.21 for `str()
// const`.
std::string StrBefore20(const std::stringbuf* buffer) __asm__(
    "_ZNKSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv");
std::string StrOf20(const std::stringbuf* buffer) STRATALLOC_FLOOR(
    "_ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv");
std::string StrOf20(const std::stringbuf* buffer) {
  return StrBefore20(buffer);
}

// `str() &&` of C++20.
std::string TakeStr(std::stringbuf* buffer) STRATALLOC_FLOOR(
    "_ZNOSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv");
std::string TakeStr(std::stringbuf* buffer) {
  std::string taken = StrBefore20(buffer);
  const std::string nothing;
  buffer->str(nothing);
  return taken;
}

// GLIBCXX_3.4.26 for constructors without arguments, GLIBCXX_3.4.21 for those
// with a mode.
#define STRATALLOC_CONSTRUCTOR(name, type, mode)                               \
  void name##Before(void* self, std::ios_base::openmode) __asm__(              \
      "_ZNSt7__cxx11" type "IcSt11char_traitsIcESaIcEEC1ESt13_Ios_Openmode");  \
  void name(void* self)                                                        \
      STRATALLOC_FLOOR("_ZNSt7__cxx11" type "IcSt11char_traitsIcESaIcEEC1Ev"); \
  void name(void* self) { name##Before(self, mode); }

STRATALLOC_CONSTRUCTOR(ConstructInput, "19basic_istringstream",
                       std::ios_base::in)
STRATALLOC_CONSTRUCTOR(ConstructOutput, "19basic_ostringstream",
                       std::ios_base::out)
STRATALLOC_CONSTRUCTOR(ConstructBoth, "18basic_stringstream",
                       std::ios_base::in | std::ios_base::out)

// CXXABI_1.3.13 for the counting of references to an exception, CXXABI_1.3.3
// for the constructor and the destructor that count.
void CopyException(void* to, const void* from) __asm__(
    "_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void AddException(void* self)
    STRATALLOC_FLOOR("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void AddException(void* self) {
  void* never_destroyed = nullptr;
  CopyException(&never_destroyed, self);
}

void DestroyException(void* self) __asm__(
    "_ZNSt15__exception_ptr13exception_ptrD1Ev");
void ReleaseException(void* self)
    STRATALLOC_FLOOR("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void ReleaseException(void* self) { DestroyException(self); }
