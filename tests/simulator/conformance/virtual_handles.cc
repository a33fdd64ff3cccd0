// SPDX-License-Identifier: Apache-2.0
//
// The driver's virtual memory management: physical handles. What may be
// created, who keeps memory alive, what a handle says of itself.

#include "tests/simulator/conformance/api.h"
#include "tests/simulator/conformance/checks.h"
#include "tests/simulator/conformance/virtual_memory.h"

namespace conformance {

CASE(virtual_memory, create) {
  Wake();
  const size_t page = Granularity();
  const CUmemAllocationProp prop = Prop();
  CUmemGenericAllocationHandle handle = 0;
  Documented("one_page", kOk, api.cuMemCreate(&handle, page, &prop, 0));
  Holds("not_null", handle != 0);
  Documented("release", kOk, api.cuMemRelease(handle));
  CUmemGenericAllocationHandle other = 0;
  Documented("unaligned_size", kInvalid,
             api.cuMemCreate(&other, page + 4096, &prop, 0));
  Documented("zero_bytes", kInvalid, api.cuMemCreate(&other, 0, &prop, 0));
  Documented("flags", kInvalid, api.cuMemCreate(&other, page, &prop, 1));
  Documented("into_null", kInvalid, api.cuMemCreate(nullptr, page, &prop, 0));
  Documented("of_null", kInvalid, api.cuMemCreate(&other, page, nullptr, 0));
  CUmemAllocationProp odd = prop;
  odd.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  Documented("no_type", kInvalid, api.cuMemCreate(&other, page, &odd, 0));
  odd = prop;
  odd.location.type = CU_MEM_LOCATION_TYPE_INVALID;
  Documented("no_location", kInvalid, api.cuMemCreate(&other, page, &odd, 0));
  odd = prop;
  odd.location.id = 1000;
  DocumentedOneOf("no_such_device", {CUDA_ERROR_INVALID_DEVICE, kInvalid},
                  api.cuMemCreate(&other, page, &odd, 0));
  // Two things wrong at once.
  Believed("unaligned_on_no_device", kInvalid,
           api.cuMemCreate(&other, page + 4096, &odd, 0));
  Documented("more_than_there_is", CUDA_ERROR_OUT_OF_MEMORY,
             api.cuMemCreate(&other, size_t{1} << 44, &prop, 0));
  Believed("unaligned_and_more_than_there_is", kInvalid,
           api.cuMemCreate(&other, (size_t{1} << 44) + 4096, &prop, 0));
  Documented("works_afterwards", kOk, api.cuMemCreate(&handle, page, &prop, 0));
  Documented("release_again", kOk, api.cuMemRelease(handle));
}

CASE(virtual_memory, release) {
  Wake();
  const size_t page = Granularity();
  const CUmemGenericAllocationHandle handle = Create(page);
  Documented("once", kOk, api.cuMemRelease(handle));
  Believed("twice", kInvalid, api.cuMemRelease(handle));
  Believed("null", kInvalid, api.cuMemRelease(0));
}

// Physical memory is taken by create and given back by the last of release
// and unmap.
CASE(virtual_memory, memory_is_counted) {
  Wake();
  const size_t page = Granularity();
  const size_t bytes = 32 * page;
  const CUdeviceptr range = Reserve(bytes);
  const size_t before = FreeBytes();
  const CUmemGenericAllocationHandle handle = Create(bytes);
  const size_t created = FreeBytes();
  BelievedTo("create_takes_it", before - created == bytes);
  (void)api.cuMemMap(range, bytes, 0, handle, 0);
  BelievedTo("map_takes_none", FreeBytes() == created);
  (void)Grant(range, bytes, kReadWrite);
  BelievedTo("access_takes_none", FreeBytes() == created);
  Documented("release_while_mapped", kOk, api.cuMemRelease(handle));
  BelievedTo("release_while_mapped_keeps_it", FreeBytes() == created);
  Documented("usable_after_release", CUDA_SUCCESS,
             api.cuMemsetD8(range, 3, bytes));
  (void)api.cudaDeviceSynchronize();
  Documented("unmap", kOk, api.cuMemUnmap(range, bytes));
  BelievedTo("unmap_gives_it_back", FreeBytes() == before);
  Documented("free", kOk, api.cuMemAddressFree(range, bytes));
}

// Retaining by address gives the handle itself, with a reference of its own.
CASE(virtual_memory, retain) {
  Wake();
  const size_t page = Granularity();
  const CUdeviceptr range = Reserve(2 * page);
  const CUmemGenericAllocationHandle handle = Create(page);
  (void)api.cuMemMap(range, page, 0, handle, 0);
  CUmemGenericAllocationHandle again = 0;
  Documented(
      "mapped", kOk,
      api.cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(range)));
  Documented("is_the_same", handle, again);
  Documented("within", kOk,
             api.cuMemRetainAllocationHandle(
                 &again, reinterpret_cast<void*>(range + 999)));
  Documented("release_the_first", kOk, api.cuMemRelease(handle));
  Documented("release_the_second", kOk, api.cuMemRelease(handle));
  CUmemAllocationProp prop = {};
  Documented("still_a_handle", kOk,
             api.cuMemGetAllocationPropertiesFromHandle(&prop, handle));
  Documented("release_the_third", kOk, api.cuMemRelease(handle));
  Refused("not_mapped", kInvalid,
          api.cuMemRetainAllocationHandle(
              &again, reinterpret_cast<void*>(range + page)));
  int here = 0;
  Refused("ordinary_memory", kInvalid,
          api.cuMemRetainAllocationHandle(&again, &here));
  Documented(
      "into_null", kInvalid,
      api.cuMemRetainAllocationHandle(nullptr, reinterpret_cast<void*>(range)));
  void* pointer = nullptr;
  (void)api.cudaMalloc(&pointer, page);
  DocumentedOneOf("memory_of_malloc", {kInvalid, CUDA_ERROR_NOT_SUPPORTED},
                  api.cuMemRetainAllocationHandle(&again, pointer));
  (void)api.cudaFree(pointer);
  // Released three times, the mapping alone keeps it: retained again.
  Documented(
      "from_the_mapping_alone", kOk,
      api.cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(range)));
  (void)api.cuMemRelease(again);
  (void)api.cuMemUnmap(range, page);
  (void)api.cuMemAddressFree(range, 2 * page);
}

CASE(virtual_memory, properties_of_a_handle) {
  Wake();
  const size_t page = Granularity();
  const CUmemGenericAllocationHandle handle = Create(page);
  CUmemAllocationProp prop = {};
  Documented("call", kOk,
             api.cuMemGetAllocationPropertiesFromHandle(&prop, handle));
  Documented("type", CU_MEM_ALLOCATION_TYPE_PINNED, prop.type);
  Documented("location", CU_MEM_LOCATION_TYPE_DEVICE, prop.location.type);
  Documented("device", 0, prop.location.id);
  Documented("not_exportable", CU_MEM_HANDLE_TYPE_NONE,
             prop.requestedHandleTypes);
  Documented("into_null", kInvalid,
             api.cuMemGetAllocationPropertiesFromHandle(nullptr, handle));
  (void)api.cuMemRelease(handle);
  // The known answer is driver 580.159's on an H200.
  Stricter("released", kInvalid, kOk,
           api.cuMemGetAllocationPropertiesFromHandle(&prop, handle));
}

// Memory located on the host can be had the same way, readable by the host
// once it is granted that. Whether a machine has it is asked first.
CASE(virtual_memory, located_on_the_host) {
  Wake();
  int supported = 0;
  (void)api.cuDeviceGetAttribute(
      &supported,
      CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0);
  if (supported == 0) {
    Skip("create", "this device cannot map memory of a host node");
    return;
  }
  CUmemAllocationProp prop = Prop(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
  size_t page = 0;
  Documented("granularity", kOk,
             api.cuMemGetAllocationGranularity(
                 &page, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CUmemGenericAllocationHandle handle = 0;
  const size_t before = FreeBytes();
  if (!Documented("create", kOk, api.cuMemCreate(&handle, page, &prop, 0))) {
    return;
  }
  BelievedTo("takes_no_device_memory", FreeBytes() == before);
  const CUdeviceptr range = Reserve(page);
  Documented("map", kOk, api.cuMemMap(range, page, 0, handle, 0));
  CUmemAccessDesc both[2] = {};
  both[0].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  both[0].flags = kReadWrite;
  both[1].location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  both[1].flags = kReadWrite;
  Documented("grant_both", kOk, api.cuMemSetAccess(range, page, both, 2));
  (void)api.cuMemsetD8(range, 0x77, page);
  (void)api.cudaDeviceSynchronize();
  Documented("host_reads_it", static_cast<unsigned char>(0x77),
             reinterpret_cast<unsigned char*>(range)[page - 1]);
  reinterpret_cast<unsigned char*>(range)[0] = 0x22;
  unsigned char byte = 0;
  (void)api.cuMemcpyDtoH(&byte, range, 1);
  Documented("device_reads_it", static_cast<unsigned char>(0x22), byte);
  cudaPointerAttributes found;
  (void)api.cudaPointerGetAttributes(&found, reinterpret_cast<void*>(range));
  Believed("pointer_type", cudaMemoryTypeHost, found.type);
  (void)api.cuMemGetAllocationPropertiesFromHandle(&prop, handle);
  Documented("its_location", CU_MEM_LOCATION_TYPE_HOST_NUMA,
             prop.location.type);
  Documented("unmap", kOk, api.cuMemUnmap(range, page));
  Documented("release", kOk, api.cuMemRelease(handle));
  Documented("free", kOk, api.cuMemAddressFree(range, page));
}

// What an allocator calls to bring memory back to the device while another
// stream captures: the calls up to the copy need no relaxed mode.
CASE(virtual_memory, during_a_capture) {
  Wake();
  const size_t page = Granularity();
  const CUmemAllocationProp prop = Prop();
  void* pinned = nullptr;
  cudaStream_t captures = nullptr;
  cudaStream_t copies = nullptr;
  cudaEvent_t event = nullptr;
  (void)api.cudaMallocHost(&pinned, page);
  (void)api.cudaStreamCreateWithFlags(&captures, cudaStreamNonBlocking);
  (void)api.cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking);
  (void)api.cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  alignas(4096) static char registered[4096];
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle handle = 0;
  const auto status = [&] {
    cudaStreamCaptureStatus now = cudaStreamCaptureStatusNone;
    (void)api.cudaStreamIsCapturing(captures, &now);
    return now;
  };
  (void)api.cudaStreamBeginCapture(captures, cudaStreamCaptureModeGlobal);
  Believed("reserve", kOk, api.cuMemAddressReserve(&range, page, 0, 0, 0));
  Believed("create", kOk, api.cuMemCreate(&handle, page, &prop, 0));
  Believed("map", kOk, api.cuMemMap(range, page, 0, handle, 0));
  Believed("grant", kOk, Grant(range, page, kReadWrite));
  Believed("copy", cudaSuccess,
           api.cudaMemcpyAsync(reinterpret_cast<void*>(range), pinned, page,
                               cudaMemcpyHostToDevice, copies));
  Believed("record", cudaSuccess, api.cudaEventRecord(event, copies));
  Believed("captures", cudaStreamCaptureStatusActive, status());
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  (void)api.cudaThreadExchangeStreamCaptureMode(&mode);
  Believed("wait_for_event", cudaSuccess, api.cudaEventSynchronize(event));
  Believed("query_event", cudaSuccess, api.cudaEventQuery(event));
  Believed("wait_for_stream", cudaSuccess, api.cudaStreamSynchronize(copies));
  Believed("register_host", cudaSuccess,
           api.cudaHostRegister(registered, sizeof registered, 0));
  (void)api.cudaHostUnregister(registered);
  (void)api.cudaThreadExchangeStreamCaptureMode(&mode);
  Believed("unmap", kOk, api.cuMemUnmap(range, page));
  Believed("captures_still", cudaStreamCaptureStatusActive, status());
  cudaGraph_t graph = nullptr;
  Believed("end", cudaSuccess, api.cudaStreamEndCapture(captures, &graph));
  if (graph != nullptr) (void)api.cudaGraphDestroy(graph);
  (void)api.cuMemRelease(handle);
  (void)api.cuMemAddressFree(range, page);
  (void)api.cudaEventDestroy(event);
  (void)api.cudaStreamDestroy(copies);
  (void)api.cudaStreamDestroy(captures);
  (void)api.cudaFreeHost(pinned);
}

}  // namespace conformance
