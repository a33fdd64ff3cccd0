// SPDX-License-Identifier: Apache-2.0
//
// The driver's virtual memory management: addresses. What may be reserved,
// mapped, unmapped and granted, and in which order refusals come.

#include "tests/simulator/conformance/virtual_memory.h"

#include <vector>

#include "tests/simulator/conformance/api.h"
#include "tests/simulator/conformance/checks.h"

namespace conformance {

// 2 MiB on every device so far, for both questions; the reference promises no
// number.
CASE(virtual_memory, granularity) {
  Wake();
  const CUmemAllocationProp prop = Prop();
  size_t least = 0;
  size_t best = 0;
  Documented("minimum", kOk,
             api.cuMemGetAllocationGranularity(
                 &least, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  Documented("recommended", kOk,
             api.cuMemGetAllocationGranularity(
                 &best, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  Holds("a_power_of_two", least != 0 && (least & (least - 1)) == 0);
  Holds("recommended_is_a_multiple", best != 0 && best % least == 0);
  Believed("two_mib", size_t{2} << 20, least);
  Believed("recommended_two_mib", size_t{2} << 20, best);
  Documented("into_null", kInvalid,
             api.cuMemGetAllocationGranularity(
                 nullptr, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  Documented("of_null", kInvalid,
             api.cuMemGetAllocationGranularity(
                 &least, nullptr, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  Documented(
      "no_such_option", kInvalid,
      api.cuMemGetAllocationGranularity(
          &least, &prop, static_cast<CUmemAllocationGranularity_flags>(77)));
  CUmemAllocationProp other = prop;
  other.location.id = 1000;
  // Driver 580.159 on an H200 looks neither at the device nor at the type.
  Believed("no_such_device", kOk,
           api.cuMemGetAllocationGranularity(&least, &other,
                                             CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  other = prop;
  other.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  Believed("no_such_type", kOk,
           api.cuMemGetAllocationGranularity(&least, &other,
                                             CU_MEM_ALLOC_GRANULARITY_MINIMUM));
}

CASE(virtual_memory, reserve) {
  Wake();
  const size_t page = Granularity();
  CUdeviceptr range = 0;
  Documented("one_page", kOk, api.cuMemAddressReserve(&range, page, 0, 0, 0));
  Holds("not_null", range != 0);
  Holds("aligned", range % page == 0);
  CUdeviceptr other = 0;
  Documented("zero_bytes", kInvalid,
             api.cuMemAddressReserve(&other, 0, 0, 0, 0));
  Documented("unaligned_size", kInvalid,
             api.cuMemAddressReserve(&other, page + 1, 0, 0, 0));
  // The reference asks for multiples of the host's page only.
  Believed("half_a_page", kInvalid,
           api.cuMemAddressReserve(&other, page / 2, 0, 0, 0));
  Documented("flags", kInvalid,
             api.cuMemAddressReserve(&other, page, 0, 0, 0x80));
  Documented("into_null", kInvalid,
             api.cuMemAddressReserve(nullptr, page, 0, 0, 0));
  Believed("alignment_no_power_of_two", kInvalid,
           api.cuMemAddressReserve(&other, page, 3 * page, 0, 0));
  const size_t large = page * 16;
  Documented("with_alignment", kOk,
             api.cuMemAddressReserve(&other, page, large, 0, 0));
  Holds("alignment_is_kept", other % large == 0);
  Documented("free", kOk, api.cuMemAddressFree(range, page));
  Documented("free_aligned", kOk, api.cuMemAddressFree(other, page));
  // Far more than there is memory: address space costs nothing.
  Documented("sixteen_gib", kOk,
             api.cuMemAddressReserve(&range, size_t{16} << 30, 0, 0, 0));
  Documented("free_sixteen_gib", kOk,
             api.cuMemAddressFree(range, size_t{16} << 30));
}

// A hint is a wish: another address may come back. One that is no address of a
// page is an error to driver 580.159 on an H200.
CASE(virtual_memory, hints) {
  Wake();
  const size_t page = Granularity();
  const CUdeviceptr whole = Reserve(4 * page);
  (void)api.cuMemAddressFree(whole, 4 * page);
  CUdeviceptr range = 0;
  Documented("free_address", kOk,
             api.cuMemAddressReserve(&range, page, 0, whole + page, 0));
  Believed("free_address_is_taken", whole + page, range);
  CUdeviceptr second = 0;
  Documented("taken_address", kOk,
             api.cuMemAddressReserve(&second, page, 0, range, 0));
  Holds("taken_address_gives_another", second != range && second != 0);
  CUdeviceptr third = 0;
  Believed("unaligned_hint", kInvalid,
           api.cuMemAddressReserve(&third, page, 0, range + 12345, 0));
  (void)api.cuMemAddressFree(range, page);
  (void)api.cuMemAddressFree(second, page);
}

// The size must be the reservation's, the address what came back.
CASE(virtual_memory, free_of_a_reservation) {
  Wake();
  const size_t page = Granularity();
  const CUdeviceptr range = Reserve(4 * page);
  Refused("part", kInvalid, api.cuMemAddressFree(range, page));
  Refused("from_within", kInvalid,
          api.cuMemAddressFree(range + page, 3 * page));
  Refused("too_much", kInvalid, api.cuMemAddressFree(range, 8 * page));
  Documented("zero_bytes", kInvalid, api.cuMemAddressFree(range, 0));
  Documented("null", kInvalid, api.cuMemAddressFree(0, page));
  Documented("whole", kOk, api.cuMemAddressFree(range, 4 * page));
  Refused("twice", kInvalid, api.cuMemAddressFree(range, 4 * page));
  void* pointer = nullptr;
  (void)api.cudaMalloc(&pointer, page);
  Believed("memory_of_malloc", kInvalid,
           api.cuMemAddressFree(reinterpret_cast<CUdeviceptr>(pointer), page));
  (void)api.cudaFree(pointer);
}

CASE(virtual_memory, free_with_live_mappings) {
  Wake();
  const size_t page = Granularity();
  const CUdeviceptr range = Reserve(page);
  const CUmemGenericAllocationHandle handle = Create(page);
  Documented("map", kOk, api.cuMemMap(range, page, 0, handle, 0));
  Believed("free", kInvalid, api.cuMemAddressFree(range, page));
  Documented("unmap", kOk, api.cuMemUnmap(range, page));
  Documented("free_afterwards", kOk, api.cuMemAddressFree(range, page));
  Documented("release", kOk, api.cuMemRelease(handle));
}

CASE(virtual_memory, map) {
  Wake();
  const size_t page = Granularity();
  const CUdeviceptr range = Reserve(4 * page);
  const CUmemGenericAllocationHandle handle = Create(page);
  const CUmemGenericAllocationHandle large = Create(2 * page);
  // An allocation is mapped whole, from its beginning: driver 580.159 on an
  // H200 answers CUDA_ERROR_NOT_SUPPORTED to all else.
  Refused("offset", kWhole, api.cuMemMap(range, page, page, large, 0));
  Documented("unaligned_address", kInvalid,
             api.cuMemMap(range + 4096, page, 0, handle, 0));
  Refused("unaligned_size", kWhole,
          api.cuMemMap(range, page / 2, 0, handle, 0));
  Documented("zero_bytes", kInvalid, api.cuMemMap(range, 0, 0, handle, 0));
  Documented("flags", kInvalid, api.cuMemMap(range, page, 0, handle, 1));
  Refused("larger_than_the_handle", kWhole,
          api.cuMemMap(range, 2 * page, 0, handle, 0));
  // The reference only asks that it be no larger.
  Believed("part_of_the_handle", kWhole,
           api.cuMemMap(range, page, 0, large, 0));
  Believed("no_handle", kInvalid, api.cuMemMap(range, page, 0, 0, 0));
  Documented("good", kOk, api.cuMemMap(range, page, 0, handle, 0));
  // Only ranges that are not mapped can be mapped.
  Refused("over_a_mapping", kInvalid, api.cuMemMap(range, page, 0, handle, 0));
  Refused("partly_over_a_mapping", kInvalid,
          api.cuMemMap(range, 2 * page, 0, large, 0));
  Documented("beside_it", kOk,
             api.cuMemMap(range + page, 2 * page, 0, large, 0));
  const CUdeviceptr nowhere = Reserve(page);
  (void)api.cuMemAddressFree(nowhere, page);
  Refused("nothing_reserved", kInvalid,
          api.cuMemMap(nowhere, page, 0, handle, 0));
  Documented("unmap", kOk, api.cuMemUnmap(range, page));
  Documented("unmap_large", kOk, api.cuMemUnmap(range + page, 2 * page));
  Documented("map_again", kOk, api.cuMemMap(range, page, 0, handle, 0));
  (void)api.cuMemUnmap(range, page);
  (void)api.cuMemRelease(handle);
  (void)api.cuMemRelease(large);
  (void)api.cuMemAddressFree(range, 4 * page);
}

// Driver 580.159 on an H200 refused this in a process of its own. Behind other
// cases it answered CUDA_SUCCESS once, and checks that came later failed.
CASE_IN_OWN_PROCESS(virtual_memory, map_past_the_reservation) {
  Wake();
  const size_t page = Granularity();
  const CUdeviceptr range = Reserve(page);
  Believed("refused", kInvalid,
           api.cuMemMap(range, 2 * page, 0, Create(2 * page), 0));
}

// The known answers are those of driver 580.159 on an H200: it refuses a part
// of a mapping, and takes a range of which some or all is not mapped.
CASE_IN_OWN_PROCESS(virtual_memory, unmap_wrongly) {
  Wake();
  const size_t page = Granularity();
  // A mapping of two pages, one of one page beside it, nothing behind.
  const auto mapped = [&] {
    const CUdeviceptr range = Reserve(8 * page);
    (void)api.cuMemMap(range, 2 * page, 0, Create(2 * page), 0);
    (void)api.cuMemMap(range + 2 * page, page, 0, Create(page), 0);
    return range;
  };
  Believed("second_half", kInvalid, api.cuMemUnmap(mapped() + page, page));
  Believed("one_and_a_half", kInvalid,
           api.cuMemUnmap(mapped() + page, 2 * page));
  Stricter("not_mapped", kInvalid, kOk,
           api.cuMemUnmap(mapped() + 5 * page, page));
  Stricter("with_a_hole", kInvalid, kOk, api.cuMemUnmap(mapped(), 4 * page));
  const CUdeviceptr once = mapped();
  (void)api.cuMemUnmap(once, 2 * page);
  Stricter("again", kInvalid, kOk, api.cuMemUnmap(once, 2 * page));
}

// A mapping goes as a whole; several neighbours may go together.
CASE(virtual_memory, unmap) {
  Wake();
  const size_t page = Granularity();
  const CUdeviceptr range = Reserve(8 * page);
  const CUmemGenericAllocationHandle large = Create(2 * page);
  const CUmemGenericAllocationHandle small = Create(page);
  (void)api.cuMemMap(range, 2 * page, 0, large, 0);
  (void)api.cuMemMap(range + 2 * page, page, 0, small, 0);
  Refused("first_half", kInvalid, api.cuMemUnmap(range, page));
  Documented("zero_bytes", kInvalid, api.cuMemUnmap(range, 0));
  Documented("unaligned", kInvalid, api.cuMemUnmap(range, page + 4096));
  Documented("two_neighbours_at_once", kOk, api.cuMemUnmap(range, 3 * page));
  void* pointer = nullptr;
  (void)api.cudaMalloc(&pointer, page);
  Believed("memory_of_malloc", kInvalid,
           api.cuMemUnmap(reinterpret_cast<CUdeviceptr>(pointer), page));
  (void)api.cudaFree(pointer);
  (void)api.cuMemRelease(large);
  (void)api.cuMemRelease(small);
  Documented("free", kOk, api.cuMemAddressFree(range, 8 * page));
}

// All mappings start without access, also at an address that had it before.
CASE(virtual_memory, access) {
  Wake();
  const size_t page = Granularity();
  const CUdeviceptr range = Reserve(2 * page);
  const CUmemGenericAllocationHandle handle = Create(page);
  unsigned long long flags = 99;
  Believed("of_a_reservation", kInvalid, AccessAt(range, &flags));
  Refused("grant_unmapped", kInvalid, Grant(range, page, kReadWrite));
  (void)api.cuMemMap(range, page, 0, handle, 0);
  Documented("get_new", kOk, AccessAt(range, &flags));
  Documented("new_has_none", 0ULL, flags);
  Refused("grant_more_than_mapped", kInvalid,
          Grant(range, 2 * page, kReadWrite));
  Documented("grant", kOk, Grant(range, page, kReadWrite));
  (void)AccessAt(range, &flags);
  Documented("granted", static_cast<unsigned long long>(kReadWrite), flags);
  (void)AccessAt(range + 12345, &flags);
  Documented("granted_within", static_cast<unsigned long long>(kReadWrite),
             flags);
  Documented("usable", kOk, api.cuMemsetD8(range, 1, page));
  (void)api.cudaDeviceSynchronize();
  Documented("grant_again", kOk, Grant(range, page, kReadWrite));
  Documented("read_only", kOk,
             Grant(range, page, CU_MEM_ACCESS_FLAGS_PROT_READ));
  (void)AccessAt(range, &flags);
  Documented("now_read_only",
             static_cast<unsigned long long>(CU_MEM_ACCESS_FLAGS_PROT_READ),
             flags);
  Documented("none", kOk, Grant(range, page, CU_MEM_ACCESS_FLAGS_PROT_NONE));
  (void)AccessAt(range, &flags);
  Documented("now_none", 0ULL, flags);
  (void)Grant(range, page, kReadWrite);
  (void)api.cuMemUnmap(range, page);
  (void)api.cuMemMap(range, page, 0, handle, 0);
  (void)AccessAt(range, &flags);
  Documented("none_after_a_new_mapping", 0ULL, flags);
  Refused("grant_part", kInvalid, Grant(range, page / 2, kReadWrite));
  Documented("grant_nobody", kInvalid,
             api.cuMemSetAccess(range, page, nullptr, 1));
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = kReadWrite;
  Documented("grant_none_of_them", kInvalid,
             api.cuMemSetAccess(range, page, &access, 0));
  access.location.id = 1000;
  DocumentedOneOf("grant_to_no_device", {CUDA_ERROR_INVALID_DEVICE, kInvalid},
                  api.cuMemSetAccess(range, page, &access, 1));
  access.location.id = 0;
  access.flags = static_cast<CUmemAccess_flags>(2);
  Believed("write_only", kInvalid, api.cuMemSetAccess(range, page, &access, 1));
  Documented("get_into_null", kInvalid, AccessAt(range, nullptr));
  Documented("get_of_no_location", kInvalid,
             api.cuMemGetAccess(&flags, nullptr, range));
  (void)api.cuMemUnmap(range, page);
  (void)api.cuMemRelease(handle);
  (void)api.cuMemAddressFree(range, 2 * page);
}

// The host is never let at memory located on a device.
CASE(virtual_memory, host_access_to_device_memory) {
  Wake();
  Mapped mapped(1);
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  access.flags = kReadWrite;
  Refused("host_numa", CUDA_ERROR_NOT_SUPPORTED,
          api.cuMemSetAccess(mapped.range, mapped.page, &access, 1));
}

// One grant over several mappings, and the access of each.
CASE(virtual_memory, access_over_many_mappings) {
  Wake();
  Mapped mapped(4, /*grant=*/false);
  Documented("grant_all", kOk, Grant(mapped.range, mapped.bytes, kReadWrite));
  bool all = true;
  for (int i = 0; i < 4; ++i) {
    unsigned long long flags = 0;
    (void)AccessAt(mapped.range + i * mapped.page, &flags);
    all &= flags == kReadWrite;
  }
  Holds("each_has_it", all);
  Documented("take_from_the_middle", kOk,
             Grant(mapped.range + mapped.page, 2 * mapped.page,
                   CU_MEM_ACCESS_FLAGS_PROT_NONE));
  unsigned long long flags = 0;
  (void)AccessAt(mapped.range, &flags);
  Documented("first_keeps_it", static_cast<unsigned long long>(kReadWrite),
             flags);
  (void)AccessAt(mapped.range + 2 * mapped.page, &flags);
  Documented("third_lost_it", 0ULL, flags);
}

// Work runs over neighbours as over one allocation.
CASE(virtual_memory, work_across_mappings) {
  Wake();
  Mapped mapped(3);
  Documented("fill", kOk, api.cuMemsetD8(mapped.range, 0x5A, mapped.bytes));
  std::vector<unsigned char> back(mapped.bytes, 0);
  Documented("read_back", cudaSuccess,
             api.cudaMemcpy(back.data(), reinterpret_cast<void*>(mapped.range),
                            mapped.bytes, cudaMemcpyDeviceToHost));
  bool right = true;
  for (const unsigned char byte : back) right &= byte == 0x5A;
  Holds("bytes", right);
  cudaPointerAttributes found;
  (void)api.cudaPointerGetAttributes(&found,
                                     reinterpret_cast<void*>(mapped.range));
  Documented("is_device_memory", cudaMemoryTypeDevice, found.type);
}

// Two addresses of one handle show the same bytes.
CASE(virtual_memory, one_handle_at_two_addresses) {
  Wake();
  const size_t page = Granularity();
  const CUdeviceptr one = Reserve(page);
  const CUdeviceptr two = Reserve(page);
  const CUmemGenericAllocationHandle handle = Create(page);
  Documented("first", kOk, api.cuMemMap(one, page, 0, handle, 0));
  Documented("second", kOk, api.cuMemMap(two, page, 0, handle, 0));
  (void)Grant(one, page, kReadWrite);
  (void)Grant(two, page, kReadWrite);
  (void)api.cuMemsetD8(one, 0x11, page);
  (void)api.cudaDeviceSynchronize();
  unsigned char byte = 0;
  (void)api.cuMemcpyDtoH(&byte, two + 4000, 1);
  Documented("written_through_one", static_cast<unsigned char>(0x11), byte);
  Documented("unmap_one", kOk, api.cuMemUnmap(one, page));
  byte = 0;
  Documented("read_two", kOk, api.cuMemcpyDtoH(&byte, two + 5000, 1));
  Documented("still_there", static_cast<unsigned char>(0x11), byte);
  // Bytes live with the handle, not with the address.
  (void)api.cuMemUnmap(two, page);
  (void)api.cuMemMap(one, page, 0, handle, 0);
  (void)Grant(one, page, kReadWrite);
  byte = 0;
  (void)api.cuMemcpyDtoH(&byte, one + 6000, 1);
  Documented("after_mapping_again", static_cast<unsigned char>(0x11), byte);
  (void)api.cuMemUnmap(one, page);
  (void)api.cuMemRelease(handle);
  (void)api.cuMemAddressFree(one, page);
  (void)api.cuMemAddressFree(two, page);
}

}  // namespace conformance
