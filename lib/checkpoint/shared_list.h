// SharedList: a list whose copies are one list. A few bytes of a pickle may name the same list very
// often.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace dsckpt {

// Immutable.
template <typename T>
class SharedList {
 public:
  SharedList() = default;
  SharedList(std::vector<T> items) {
    if (!items.empty()) items_ = std::make_shared<const std::vector<T>>(std::move(items));
  }

  const T* begin() const { return items_ ? items_->data() : nullptr; }
  const T* end() const { return begin() + size(); }
  size_t size() const { return items_ ? items_->size() : 0; }
  bool empty() const { return size() == 0; }
  const T& operator[](size_t index) const { return (*items_)[index]; }

  // True if they are one list.
  bool is(const SharedList& other) const { return items_ == other.items_; }
  bool operator==(const SharedList& other) const {
    return is(other) || std::equal(begin(), end(), other.begin(), other.end());
  }

 private:
  std::shared_ptr<const std::vector<T>> items_;
};

}  // namespace dsckpt
