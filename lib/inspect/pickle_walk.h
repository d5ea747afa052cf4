// Shared by the writers of pickle_text.h: which containers are shared, and which values are
// tensors. For these sources only.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "format/torch_archive.h"
#include "pickle/pickle.h"

namespace dsckpt {

// The numbers of containers with more than one reference.
class SharedContainers {
 public:
  explicit SharedContainers(const pickle::Value& root);

  struct Number {
    uint64_t number = 0;  // 0 if the container is not shared
    bool is_first = false;
  };
  // Call it in the order of writing; numbers count up from 1.
  Number meet(const pickle::Value& container);
  bool is_shared(const pickle::Value& container) const {
    return numbers_.contains(container.identity());
  }

 private:
  std::unordered_map<const void*, uint64_t> numbers_;  // of the shared ones; 0: not met yet
  uint64_t last_ = 0;
};

// True for containers of other values, and for objects.
bool is_container(const pickle::Value& value);

// nullopt if `value` is not a well-formed tensor of the archive.
std::optional<TensorInfo> tensor_of(const TorchArchive* archive, const pickle::Value& value);

// "-0x1f" of a little-endian two's complement.
std::string hex_integer(std::string_view twos_complement);
// "0a1b" of bytes.
std::string hex(std::string_view bytes);
// As Python's repr and json: the shortest text that reads back.
std::string shortest_real(double value);
std::string_view name_of(pickle::ObjectNode::Made made);

}  // namespace dsckpt
