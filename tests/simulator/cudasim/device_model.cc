// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/device_model.h"

#include <cuda.h>
#include <strings.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {

bool DeviceAttribute(const Card& card, int attribute, int device, int* value) {
  if (attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return false;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      *value = card.threads_per_block;
      return true;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      *value = 64;
      return true;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      *value = 0x7fffffff;
      return true;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
      *value = attribute == CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK ||
                       attribute ==
                           CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR
                   ? 65536
                   : 65535;
      return true;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      *value = card.shared_per_block;
      return true;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = card.shared_per_block_optin;
      return true;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      *value = card.shared_per_multiprocessor;
      return true;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
      *value = 1024;
      return true;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
      *value = 65536;
      return true;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      *value = 32;
      return true;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = card.multiprocessors;
      return true;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      *value = card.threads_per_multiprocessor;
      return true;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
      *value = card.blocks_per_multiprocessor;
      return true;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = card.compute_major;
      return true;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = card.compute_minor;
      return true;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
      *value = card.clock_khz;
      return true;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
      *value = card.memory_clock_khz;
      return true;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
      *value = card.bus_width;
      return true;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
      *value = card.l2_bytes;
      return true;
    case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE:
      *value = card.persisting_l2_bytes;
      return true;
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
      *value = card.ecc;
      return true;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
      *value = card.texture_alignment;
      return true;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      *value = card.copy_engines;
      return true;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      *value = device + 1;
      return true;
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
      *value = 1;
      return true;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      *value = Simulator::Get().HasVirtualMemory(device) ? 1 : 0;
      return true;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
      *value = Simulator::Get().HasVirtualMemory(device)
                   ? card.says_rdma_handles
                   : 0;
      return true;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
      *value = 0;
      return true;
    default:
      // Managed memory, pools, graphs' memory nodes, textures, multicast: not
      // there, and said so.
      *value = 0;
      return true;
  }
}

int BlocksPerMultiprocessor(const Card& card, int block_threads,
                            unsigned long shared_bytes) {
  if (block_threads <= 0 || block_threads > card.threads_per_block) return 0;
  if (shared_bytes > size_t(card.shared_per_block_optin)) return 0;
  const int by_threads = card.threads_per_multiprocessor / block_threads;
  const int by_shared =
      static_cast<int>(card.shared_per_multiprocessor / (shared_bytes + 1024));
  return std::min({by_threads, by_shared, card.blocks_per_multiprocessor});
}

int DeviceByBusId(const char* text, int devices) {
  if (text == nullptr) return -1;
  for (int device = 0; device < devices; ++device) {
    // CUDA takes it with or without the domain and the function.
    for (const char* form : {"0000:%02x:00.0", "0000:%02x:00", "%02x:00.0"}) {
      char known[16];
      std::snprintf(known, sizeof(known), form, device + 1);
      if (strcasecmp(text, known) == 0) return device;
    }
  }
  return -1;
}

void DeviceUuid(int device, char bytes[16]) {
  std::memcpy(bytes, "cudasim-device", 14);
  bytes[14] = static_cast<char>('0' + device / 10);
  bytes[15] = static_cast<char>('0' + device % 10);
}

}  // namespace cudasim
