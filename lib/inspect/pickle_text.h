// Pickles as text like Python's for people, and as JSON for programs.
//
// Both are written to a stream while the values are walked, and have everything in the pickle. A
// container with several references is written once, with a number, and then only as its number. So
// the output is never much longer than the pickle, and cycles do no harm.
#pragma once

#include <cstdint>
#include <ostream>
#include <string_view>

#include "format/torch_archive.h"
#include "pickle/pickle.h"

namespace dsckpt {

struct PickleTextOptions {
  // Values below this many containers are shown only as their kind.
  uint32_t depth = 1000;
  // Texts and bytes in full, in the text form; else their first 200 bytes.
  bool full = false;
};

// The text form. One value a line, indented:
//   {
//     'step': 3,
//     'groups': &1 [...],       the container that is *1 elsewhere
//     'weight': tensor(float32, [3, 4], storage 7 + 0),
//     'scaler': deepspeed...LossScaler() with {...state...},
//   }
// Tensors are recognised if `archive` is given; `value` must then be of it.
void write_pickle_text(std::ostream& out, const pickle::Value& value, const TorchArchive* archive,
                       const PickleTextOptions& options);

// The JSON form, in one line. None, bools, 64-bit integers, finite reals, texts, lists, and dicts
// whose keys are all texts that do not begin with "$" are JSON's own. Anything else is an object
// with one key:
//   {"$integer": "-0x1f.."}, {"$float": "nan" | "inf" | "-inf"}, {"$bytes": HEX},
//   {"$bytearray": HEX}, {"$tuple": [..]}, {"$set": [..]}, {"$frozenset": [..]},
//   {"$dict": [[KEY, VALUE], ..]}, {"$global": [MODULE, NAME]}, {"$persistent": ID},
//   {"$object": {"made": "reduce" | "newobj" | "newobj_ex" | "inst", "callable": V,
//                "arguments": V, "keywords"?: V, "state"?: V, "items"?: [..],
//                "mapping"?: [[KEY, VALUE], ..]}},
//   {"$tensor": {"dtype", "shape", "strides", "storage", "storage_offset", "requires_grad",
//                "attributes"?: V}},
//   {"$shared": N, "value": V} at the first place of a shared container, {"$ref": N} at others,
//   {"$elided": KIND} below `depth`.
// Texts that are not UTF-8 because of lone surrogates have these as \ud800.
void write_pickle_json(std::ostream& out, const pickle::Value& value, const TorchArchive* archive,
                       const PickleTextOptions& options);

// The value at `path` below `root`: keys of mappings (texts, and integers) and indices of
// sequences, joined with dots. For objects, also keys of their state. Keys may contain dots: the
// longest that fits is tried first, then shorter ones. Throws UsageError.
pickle::Value value_at(const pickle::Value& root, std::string_view path);

}  // namespace dsckpt
