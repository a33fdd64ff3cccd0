// SPDX-License-Identifier: Apache-2.0
//
// cubin_builder.h: makes the images of device code that tests load: an ELF file
// with the sections of a cubin that name its kernels and their parameters, and
// no code. Real ones are read in operator_bridge/test_triton.py.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_CUBIN_BUILDER_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_CUBIN_BUILDER_H_

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace cudasim {

class CubinBuilder {
 public:
  // Parameters of these sizes, each aligned to itself.
  CubinBuilder& Kernel(const std::string& name,
                       const std::vector<unsigned>& sizes) {
    std::string info;
    Add(&info, uint32_t{0x00000019 << 8 | 3});  // EIATTR_CBANK_PARAM_SIZE
    unsigned offset = 0;
    std::string parameters;
    for (size_t i = 0; i < sizes.size(); ++i) {
      offset = (offset + sizes[i] - 1) / sizes[i] * sizes[i];
      std::string one;
      Add(&one, uint32_t{12 << 16 | 0x17 << 8 | 4});  // EIATTR_KPARAM_INFO
      Add(&one, uint32_t{0});
      Add(&one, static_cast<uint16_t>(i));
      Add(&one, static_cast<uint16_t>(offset));
      Add(&one, uint32_t{sizes[i] << 18 | 0x1f << 12});
      parameters = one + parameters;  // ptxas puts the last one first
      offset += sizes[i];
    }
    sections_.emplace_back(".text." + name, std::string(16, '\0'));
    sections_.emplace_back(".nv.info." + name, info + parameters);
    return *this;
  }
  CubinBuilder& Section(const std::string& name, const std::string& bytes) {
    sections_.emplace_back(name, bytes);
    return *this;
  }

  std::string Build() const {
    std::string names(1, '\0');
    std::string bodies;
    std::vector<Elf64_Shdr> headers(1);
    std::memset(&headers[0], 0, sizeof(headers[0]));
    auto all = sections_;
    all.emplace_back(".shstrtab", "");
    for (const auto& [name, body] : all) {
      Elf64_Shdr header = {};
      header.sh_name = static_cast<Elf64_Word>(names.size());
      names += name + '\0';
      header.sh_offset = sizeof(Elf64_Ehdr) + bodies.size();
      header.sh_size = body.size();
      bodies += body;
      headers.push_back(header);
    }
    headers.back().sh_offset = sizeof(Elf64_Ehdr) + bodies.size();
    headers.back().sh_size = names.size();
    bodies += names;
    Elf64_Ehdr header = {};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_machine = 190;  // EM_CUDA
    header.e_shoff = sizeof(header) + bodies.size();
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = static_cast<Elf64_Half>(headers.size());
    header.e_shstrndx = static_cast<Elf64_Half>(headers.size() - 1);
    std::string image(reinterpret_cast<const char*>(&header), sizeof(header));
    image += bodies;
    image.append(reinterpret_cast<const char*>(headers.data()),
                 headers.size() * sizeof(headers[0]));
    return image;
  }

 private:
  template <typename T>
  static void Add(std::string* to, T value) {
    to->append(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  std::vector<std::pair<std::string, std::string>> sections_;
};

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_CUBIN_BUILDER_H_
