// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/other_process.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/simulator/cudasim/control.h"

namespace cudasim {
namespace {

constexpr size_t kBlock = size_t{2} << 20;

// One message with at most one descriptor. False: the other side is gone.
bool Send(int socket, const void* bytes, size_t count, int descriptor) {
  iovec part = {const_cast<void*>(bytes), count};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = room;
    message.msg_controllen = sizeof(room);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(count);
}

bool Receive(int socket, void* bytes, size_t count, int* descriptor) {
  iovec part = {bytes, count};
  alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) !=
      static_cast<ssize_t>(count)) {
    return false;
  }
  *descriptor = -1;
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message)) {
    std::memcpy(descriptor, CMSG_DATA(header), sizeof(int));
  }
  return true;
}

void* Pointer(uint64_t number) { return reinterpret_cast<void*>(number); }
template <typename Handle>
uint64_t Number(Handle handle) {
  return reinterpret_cast<uint64_t>(handle);
}

uint64_t OpenDescriptors() {
  uint64_t count = 0;
  DIR* const all = opendir("/proc/self/fd");
  while (const dirent* each = readdir(all)) count += each->d_name[0] != '.';
  closedir(all);
  return count - 1;  // the directory's own
}

int Map(CUmemGenericAllocationHandle handle, uint64_t* address) {
  CUdeviceptr start = 0;
  CUresult result = cuMemAddressReserve(&start, kBlock, 0, 0, 0);
  if (result == CUDA_SUCCESS) result = cuMemMap(start, kBlock, 0, handle, 0);
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (result == CUDA_SUCCESS) {
    result = cuMemSetAccess(start, kBlock, &access, 1);
  }
  *address = start;
  return result;
}

int Unmap(uint64_t address) {
  const CUresult result = cuMemUnmap(address, kBlock);
  return result != CUDA_SUCCESS ? result : cuMemAddressFree(address, kBlock);
}

int Create(uint64_t types, uint64_t* handle) {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
  CUmemGenericAllocationHandle made = 0;
  const CUresult result = cuMemCreate(&made, kBlock, &prop, 0);
  *handle = made;
  return result;
}

void ListViolations(char* text, size_t bytes) {
  std::string all;
  for (long i = 0; i < cudasim_violation_count(); ++i) {
    char line[512];
    cudasim_violation(i, line, sizeof(line));
    all += std::string(line) + "\n";
  }
  std::snprintf(text, bytes, "%s", all.c_str());
}

void Serve(const Request& request, int given, Reply* reply) {
  const uint64_t a = request.a;
  cudaIpcMemHandle_t memory;
  cudaIpcEventHandle_t event;
  std::memcpy(&memory, request.handle, sizeof(memory));
  std::memcpy(&event, request.handle, sizeof(event));
  unsigned char byte = static_cast<unsigned char>(request.b);
  void* pointer = nullptr;
  cudaEvent_t made = nullptr;
  switch (request.ask) {
    case Ask::kSetMode:
      cudasim_set_mode(static_cast<int>(a));
      break;
    case Ask::kMalloc:
      reply->status = cudaMalloc(&pointer, a);
      reply->value = Number(pointer);
      break;
    case Ask::kFree:
      reply->status = cudaFree(Pointer(a));
      break;
    case Ask::kGetMemory:
      reply->status = cudaIpcGetMemHandle(&memory, Pointer(a));
      std::memcpy(reply->handle, &memory, sizeof(memory));
      break;
    case Ask::kOpenMemory:
      reply->status =
          cudaIpcOpenMemHandle(&pointer, memory, static_cast<unsigned>(a));
      reply->value = Number(pointer);
      break;
    case Ask::kCloseMemory:
      reply->status = cudaIpcCloseMemHandle(Pointer(a));
      break;
    case Ask::kRead:
      reply->status = cudaMemcpy(&byte, Pointer(a), 1, cudaMemcpyDeviceToHost);
      reply->value = byte;
      break;
    case Ask::kWrite:
      reply->status = cudaMemcpy(Pointer(a), &byte, 1, cudaMemcpyHostToDevice);
      break;
    case Ask::kFill:
      reply->status = cudaMemsetAsync(Pointer(a), byte, kBlock, nullptr);
      break;
    case Ask::kNewEvent:
      reply->status = cudaEventCreateWithFlags(&made, static_cast<unsigned>(a));
      reply->value = Number(made);
      break;
    case Ask::kGetEvent:
      reply->status = cudaIpcGetEventHandle(
          &event, reinterpret_cast<cudaEvent_t>(Pointer(a)));
      std::memcpy(reply->handle, &event, sizeof(event));
      break;
    case Ask::kOpenEvent:
      reply->status = cudaIpcOpenEventHandle(&made, event);
      reply->value = Number(made);
      break;
    case Ask::kRecord:
      reply->status =
          cudaEventRecord(reinterpret_cast<cudaEvent_t>(Pointer(a)), nullptr);
      break;
    case Ask::kQuery:
      reply->status = cudaEventQuery(reinterpret_cast<cudaEvent_t>(Pointer(a)));
      break;
    case Ask::kSynchronize:
      reply->status =
          cudaEventSynchronize(reinterpret_cast<cudaEvent_t>(Pointer(a)));
      break;
    case Ask::kDestroyEvent:
      reply->status =
          cudaEventDestroy(reinterpret_cast<cudaEvent_t>(Pointer(a)));
      break;
    case Ask::kCreate:
      reply->status = Create(a, &reply->value);
      break;
    case Ask::kExport:
      reply->status = cuMemExportToShareableHandle(
          &reply->descriptor, a, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
      break;
    case Ask::kImport: {
      CUmemGenericAllocationHandle imported = 0;
      reply->status = cuMemImportFromShareableHandle(
          &imported, Pointer(static_cast<uint64_t>(given)),
          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
      reply->value = imported;
      break;
    }
    case Ask::kMap:
      reply->status = Map(a, &reply->value);
      break;
    case Ask::kUnmap:
      reply->status = Unmap(a);
      break;
    case Ask::kRelease:
      reply->status = cuMemRelease(a);
      break;
    case Ask::kUsed:
      reply->value = cudasim_used(0);
      break;
    case Ask::kViolations:
      ListViolations(reply->text, sizeof(reply->text));
      break;
    case Ask::kLeaks:
      cudasim_leak_report(reply->text, sizeof(reply->text));
      break;
    case Ask::kDescriptors:
      reply->value = OpenDescriptors();
      break;
    case Ask::kSetDevice:
      reply->status = cudaSetDevice(static_cast<int>(a));
      break;
  }
}

}  // namespace

OtherProcess::OtherProcess(const std::string& program) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    std::perror("socketpair");
    std::abort();
  }
  socket_ = ends[0];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 3);
  std::string name = program;
  char* arguments[] = {name.data(), nullptr};
  if (posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments,
                  environ) != 0) {
    std::perror(program.c_str());
    std::abort();
  }
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
}

OtherProcess::~OtherProcess() {
  close(socket_);
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

void OtherProcess::Kill() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

Reply OtherProcess::Exchange(const Request& request, int descriptor) {
  Reply reply;
  int given = -1;
  if (!Send(socket_, &request, sizeof(request), descriptor) ||
      !Receive(socket_, &reply, sizeof(reply), &given)) {
    reply.status = -1;
    std::snprintf(reply.text, sizeof(reply.text), "the process is gone");
  }
  reply.descriptor = given;
  return reply;
}

Reply OtherProcess::Do(Ask ask, uint64_t a, uint64_t b) {
  Request request;
  request.ask = ask;
  request.a = a;
  request.b = b;
  return Exchange(request, -1);
}

Reply OtherProcess::DoWith(const void* handle, Ask ask, uint64_t a) {
  Request request;
  request.ask = ask;
  request.a = a;
  std::memcpy(request.handle, handle, sizeof(request.handle));
  return Exchange(request, -1);
}

Reply OtherProcess::DoWithDescriptor(int descriptor, Ask ask) {
  Request request;
  request.ask = ask;
  return Exchange(request, descriptor);
}

int RunOtherProcess(int socket) {
  cudasim_set_verbose(0);
  Request request;
  int given = -1;
  while (Receive(socket, &request, sizeof(request), &given)) {
    Reply reply;
    Serve(request, given, &reply);
    if (given >= 0) close(given);
    const int made = reply.descriptor;
    const bool sent = Send(socket, &reply, sizeof(reply), made);
    if (made >= 0) close(made);
    if (!sent) return 1;
  }
  return 0;
}

}  // namespace cudasim
