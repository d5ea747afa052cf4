// A hash for keys that come from files.
//
// SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF") under a key that every
// process draws anew. So no file can hold keys that all fall into one place of a table, which would
// make reading it quadratic in its size. Nothing that is written or printed may depend on the hash,
// or on the order of a table that uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace dsckpt {

// Any thread.
uint64_t keyed_hash(std::string_view bytes);
uint64_t keyed_hash(uint64_t number);

// For the tables of the standard library.
struct KeyedHash {
  size_t operator()(std::string_view bytes) const { return keyed_hash(bytes); }
  size_t operator()(uint64_t number) const { return keyed_hash(number); }
  size_t operator()(int64_t number) const { return keyed_hash(static_cast<uint64_t>(number)); }
};

// Keyed by texts, views of texts, or numbers.
template <class Key, class T>
using KeyedMap = std::unordered_map<Key, T, KeyedHash>;
template <class Key, class T>
using KeyedMultimap = std::unordered_multimap<Key, T, KeyedHash>;
template <class Key>
using KeyedSet = std::unordered_set<Key, KeyedHash>;

}  // namespace dsckpt
