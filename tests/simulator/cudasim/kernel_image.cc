// SPDX-License-Identifier: Apache-2.0

#include "tests/simulator/cudasim/kernel_image.h"

#include <elf.h>

#include <cstring>
#include <limits>

namespace cudasim {
namespace {

constexpr uint16_t kCudaMachine = 190;  // EM_CUDA
constexpr char kInfo[] = ".nv.info.";
constexpr char kText[] = ".text.";
// One attribute of .nv.info: format, name, then a value whose place the format
// says. Names and formats are those that cuobjdump prints.
constexpr uint8_t kSizedValue = 4;        // EIFMT_SVAL: 16 bits of size, bytes
constexpr uint8_t kParameterInfo = 0x17;  // EIATTR_KPARAM_INFO
// Fat binaries: a wrapper (__fatBinC_Wrapper_t) that points to a header and
// entries, one per architecture and kind.
constexpr uint32_t kWrapperMagic = 0x466243b1;
constexpr uint32_t kFatMagic = 0xba55ed50;
constexpr uint16_t kPtxEntry = 1;
constexpr uint16_t kElfEntry = 2;
constexpr uint64_t kCompressed = 0x2000 | 0x8000;  // LZ4, zstd

// The bytes of an image, as far as they may be read.
class Reader {
 public:
  Reader(const void* start, size_t bytes)
      : start_(static_cast<const char*>(start)),
        bytes_(bytes != 0 ? bytes : std::numeric_limits<size_t>::max()) {}

  bool Has(uint64_t offset, uint64_t bytes) const {
    return offset <= bytes_ && bytes <= bytes_ - offset;
  }
  template <typename T>
  bool Read(uint64_t offset, T* value) const {
    if (!Has(offset, sizeof(T))) return false;
    std::memcpy(value, start_ + offset, sizeof(T));
    return true;
  }
  // Byte by byte: what is no ELF file may be shorter than the magic.
  bool StartsWith(const void* text, size_t bytes) const {
    if (!Has(0, bytes)) return false;
    for (size_t i = 0; i < bytes; ++i) {
      if (start_[i] != static_cast<const char*>(text)[i]) return false;
    }
    return true;
  }
  const char* at(uint64_t offset) const { return start_ + offset; }

 private:
  const char* const start_;
  const size_t bytes_;
};

// The parameters in one .nv.info.<kernel>. False if it is not of that form.
bool ReadParameters(const Reader& reader, const Elf64_Shdr& section,
                    std::vector<KernelParameter>* parameters) {
  const uint64_t end = section.sh_offset + section.sh_size;
  for (uint64_t at = section.sh_offset; at + 4 <= end;) {
    struct {
      uint8_t format;
      uint8_t name;
      uint16_t value;  // or the size of what follows
    } attribute;
    if (!reader.Read(at, &attribute)) return false;
    at += 4;
    if (attribute.format != kSizedValue) continue;
    if (attribute.name == kParameterInfo) {
      struct {
        uint32_t index;
        uint16_t ordinal;
        uint16_t offset;
        uint32_t packed;  // alignment, space, bank; the size in the top 14
      } info;
      if (attribute.value < sizeof(info) || !reader.Read(at, &info)) {
        return false;
      }
      if (parameters->size() <= info.ordinal) {
        parameters->resize(size_t{info.ordinal} + 1);
      }
      (*parameters)[info.ordinal] = {info.offset, info.packed >> 18};
    }
    at += attribute.value;
  }
  for (const KernelParameter& each : *parameters) {
    if (each.bytes == 0) return false;  // one is missing
  }
  return true;
}

KernelImage ReadCubin(const Reader& reader) {
  KernelImage image;
  Elf64_Ehdr header;
  if (!reader.StartsWith(ELFMAG, SELFMAG) || !reader.Read(0, &header) ||
      header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_machine != kCudaMachine ||
      header.e_shentsize != sizeof(Elf64_Shdr)) {
    return image;
  }
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  for (size_t i = 0; i < sections.size(); ++i) {
    if (!reader.Read(header.e_shoff + i * sizeof(Elf64_Shdr), &sections[i])) {
      return image;
    }
  }
  if (header.e_shstrndx >= sections.size()) return image;
  const Elf64_Shdr& names = sections[header.e_shstrndx];
  if (names.sh_size == 0 || !reader.Has(names.sh_offset, names.sh_size) ||
      *reader.at(names.sh_offset + names.sh_size - 1) != '\0') {
    return image;
  }
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_name >= names.sh_size) return KernelImage{};
    const std::string name = reader.at(names.sh_offset + section.sh_name);
    if (name.rfind(kText, 0) == 0) {
      image.kernels[name.substr(sizeof(kText) - 1)];
    } else if (name.rfind(kInfo, 0) == 0) {
      auto& parameters = image.kernels[name.substr(sizeof(kInfo) - 1)];
      if (!ReadParameters(reader, section, &parameters)) return KernelImage{};
    }
  }
  image.known = true;
  return image;
}

KernelImage ReadFatBinary(const Reader& reader) {
  KernelImage image;
  struct {
    uint32_t magic;
    uint16_t version;
    uint16_t header_bytes;
    uint64_t bytes;  // of all entries
  } header;
  if (!reader.Read(0, &header)) return image;
  const uint64_t end = header.header_bytes + header.bytes;
  for (uint64_t at = header.header_bytes; at < end;) {
    struct {
      uint16_t kind;
      uint16_t version;
      uint32_t header_bytes;
      uint64_t bytes;
      uint32_t compressed_bytes;
      uint32_t options;
      uint16_t minor;
      uint16_t major;
      uint32_t architecture;
      uint32_t name_offset;
      uint32_t name_bytes;
      uint64_t flags;
    } entry;
    if (!reader.Read(at, &entry) || entry.header_bytes < sizeof(entry)) break;
    const uint64_t body = at + entry.header_bytes;
    const int architecture = static_cast<int>(entry.architecture);
    if (entry.kind == kElfEntry) image.cubins.push_back(architecture);
    if (entry.kind == kPtxEntry &&
        (image.oldest_ptx == 0 || architecture < image.oldest_ptx)) {
      image.oldest_ptx = architecture;
    }
    if (entry.kind == kElfEntry && (entry.flags & kCompressed) == 0 &&
        reader.Has(body, entry.bytes)) {
      // Kernels have the same parameters on every architecture.
      const KernelImage found = ReadCubin(Reader(reader.at(body), entry.bytes));
      image.known |= found.known;
      image.kernels.insert(found.kernels.begin(), found.kernels.end());
    }
    at = body + entry.bytes;
  }
  return image;
}

}  // namespace

bool KernelImage::RunsOn(int major, int minor) const {
  if (cubins.empty() && oldest_ptx == 0) return true;
  const int device = 10 * major + minor;
  // Machine code runs on its own generation, from its own model on.
  for (const int cubin : cubins) {
    if (cubin / 10 == major && cubin <= device) return true;
  }
  return oldest_ptx != 0 && oldest_ptx <= device;
}

KernelImage ReadKernelImage(const void* data, size_t bytes) {
  const Reader reader(data, bytes);
  if (reader.StartsWith(&kFatMagic, sizeof(kFatMagic))) {
    return ReadFatBinary(reader);
  }
  if (reader.StartsWith(&kWrapperMagic, sizeof(kWrapperMagic))) {
    // Magic, version, then the header's address.
    const void* header = nullptr;
    if (!reader.Read(8, &header) || header == nullptr) return {};
    const Reader inner(header, 0);
    return inner.StartsWith(&kFatMagic, sizeof(kFatMagic))
               ? ReadFatBinary(inner)
               : KernelImage{};
  }
  return ReadCubin(reader);
}

}  // namespace cudasim
