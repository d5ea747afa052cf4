#include "checkpoint/names/conversion.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/text.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

using Json = nlohmann::json;

// A shape may say anything, where a tensor repeats its elements or has none.
constexpr size_t kMostInList = 1 << 14;

UnsupportedError does_not_fit(const std::string& what) {
  return UnsupportedError({}, "the rule of its name does not fit: " + what);
}

const TensorSource& only(const std::vector<TensorSource>& tensors) {
  if (tensors.size() == 1) return tensors.front();
  throw does_not_fit("it is made of " + counted(tensors.size(), "tensor") + ", not of one");
}

const TensorSource& only(const Collected& tensors) {
  if (tensors.size() == 1) return only(tensors.front().second);
  throw does_not_fit("its names have " + counted(tensors.size(), "form") + ", not one");
}

size_t dim_of(const Json& number, const TensorSource& tensor) {
  const auto dim = number.get<int64_t>();
  const auto rank = static_cast<int64_t>(tensor.shape().size());
  if (dim >= 0 && dim < rank) return static_cast<size_t>(dim);
  throw does_not_fit("it has shape " + to_text(tensor.shape()) + ", and no dimension " +
                     std::to_string(dim));
}

std::string numbered(const std::string& pattern, size_t number) {
  std::string text;
  for (const char c : pattern) text += c == '*' ? std::to_string(number) : std::string(1, c);
  return text;
}

std::vector<TensorSource> in_equal_parts(const TensorSource& tensor, size_t dim, size_t count) {
  const int64_t size = tensor.shape()[dim];
  const auto parts = static_cast<int64_t>(count);
  if (parts == 0 || size % parts != 0) {
    throw does_not_fit("dimension " + std::to_string(dim) + " of " + to_text(tensor.shape()) +
                       " is cut into " + counted(count, "part"));
  }
  std::vector<TensorSource> cut;
  cut.reserve(count);
  for (int64_t i = 0; i < parts; ++i) {
    const auto d = static_cast<int64_t>(dim);
    cut.push_back(parts == 1 ? tensor : tensor.narrow(d, i * (size / parts), size / parts));
  }
  return cut;
}

std::vector<TensorSource> unbound(const TensorSource& tensor, size_t dim) {
  Shape shape = tensor.shape();
  const auto count = static_cast<size_t>(shape[dim]);
  if (count == 0 || count > kMostInList) {
    throw does_not_fit("it is a list of " + counted(count, "tensor") + ", by its shape " +
                       to_text(shape));
  }
  shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(dim));
  std::vector<TensorSource> parts = in_equal_parts(tensor, dim, count);
  for (TensorSource& part : parts) part = part.view(shape);
  return parts;
}

TensorSource concatenated(int64_t dim, std::vector<TensorSource> parts) {
  for (const TensorSource& part : parts) {
    Shape wanted = parts.front().shape();
    const auto d = dim_of(dim, part);
    if (wanted.size() == part.shape().size()) wanted[d] = part.shape()[d];
    if (part.shape() != wanted || part.dtype() != parts.front().dtype()) {
      throw does_not_fit("tensors of " + std::string(torch_name(parts.front().dtype())) +
                         to_text(parts.front().shape()) + " and " +
                         std::string(torch_name(part.dtype())) + to_text(part.shape()) +
                         " become one");
    }
  }
  return parts.size() == 1 ? parts.front() : TensorSource::cat(dim, std::move(parts));
}

TensorSource stacked(const Json& dim, std::vector<TensorSource> parts) {
  Shape shape = parts.front().shape();
  const auto d = dim.get<int64_t>();
  if (d < 0 || static_cast<size_t>(d) > shape.size()) {
    throw does_not_fit("tensors of shape " + to_text(shape) + " are stacked along dimension " +
                       std::to_string(d));
  }
  const Shape each = shape;
  shape.insert(shape.begin() + d, 1);
  for (TensorSource& part : parts) {
    if (part.shape() != each) {
      throw does_not_fit("tensors of shapes " + to_text(each) + " and " + to_text(part.shape()) +
                         " become one");
    }
    part = part.view(shape);
  }
  return concatenated(d, std::move(parts));
}

// A tensor [outer, a, b, inner] as [outer, b, a, inner]. A tensor in one piece is looked at with
// other strides; else it is put together of pieces of `inner` elements, if these are few.
TensorSource swapped(const TensorSource& tensor, std::array<int64_t, 4> sizes) {
  constexpr int64_t kMostPieces = 4096;
  const auto [outer, a, b, inner] = sizes;
  if (outer == 0 || a <= 1 || b <= 1 || inner == 0) return tensor;
  const std::optional<StridedView> view = tensor.as_strided();
  if (view && view->strides == contiguous_strides(view->shape)) {
    return TensorSource::stored(view->extent, view->dtype, {outer, b, a, inner},
                                {a * b * inner, inner, b * inner, 1});
  }
  if (outer * a * b > kMostPieces) {
    throw UnsupportedError({}, "changes the order of its elements, and lies in pieces: " +
                                   counted(static_cast<uint64_t>(outer * a * b), "part") + " of " +
                                   counted(static_cast<uint64_t>(inner), "element") +
                                   " would change places");
  }
  const TensorSource whole = tensor.view({outer, a, b, inner});
  std::vector<TensorSource> parts;
  for (int64_t i = 0; i < b; ++i) {
    parts.push_back(whole.narrow(2, i, 1).view({outer, 1, a, inner}));
  }
  return TensorSource::cat(1, std::move(parts));
}

int64_t product(const Shape& shape, size_t begin, size_t end) {
  int64_t count = 1;
  for (size_t i = begin; i < end; ++i) count *= shape[i];
  return count;
}

// core_model_loading.Interleave
TensorSource interleaved(const TensorSource& tensor, size_t dim, bool inverse) {
  const Shape& shape = tensor.shape();
  if (shape[dim] % 2 != 0) {
    throw does_not_fit("dimension " + std::to_string(dim) + " of " + to_text(shape) +
                       " is cut into 2 parts");
  }
  const int64_t half = shape[dim] / 2;
  const int64_t outer = product(shape, 0, dim);
  const int64_t inner = product(shape, dim + 1, shape.size());
  return swapped(tensor, inverse ? std::array{outer, int64_t{2}, half, inner}
                                 : std::array{outer, half, int64_t{2}, inner})
      .view(shape);
}

TensorSource transposed(const TensorSource& tensor, size_t first, size_t second) {
  if (first > second) std::swap(first, second);
  Shape shape = tensor.shape();
  if (second != first + 1) throw does_not_fit("dimensions that are not neighbours change places");
  const std::array sizes{product(shape, 0, first), shape[first], shape[second],
                         product(shape, second + 1, shape.size())};
  std::swap(shape[first], shape[second]);
  return swapped(tensor, sizes).view(std::move(shape));
}

// The configuration of the part that generates text: PretrainedConfig.get_text_config.
const Json& text_config(const Json& config) {
  for (const char* key : {"text_config", "decoder", "generator", "text_encoder"}) {
    if (config.contains(key) && config[key].is_object()) return config[key];
  }
  return config;
}

int64_t number_in(const Json& config, const std::string& key) {
  if (config.is_object() && config.contains(key) && config[key].is_number_integer()) {
    return config[key].get<int64_t>();
  }
  throw does_not_fit("config.json has no number '" + key + "'");
}

// core_model_loading.PermuteForRope
TensorSource permuted_for_rope(const TensorSource& tensor, const Json& config, bool inverse) {
  const Shape& shape = tensor.shape();
  if (shape.size() != 1 && shape.size() != 2) return tensor;
  const int64_t heads =
      config.contains("num_attention_heads") ? number_in(config, "num_attention_heads") : 1;
  if (heads <= 0 || shape[0] % (2 * heads) != 0) {
    throw does_not_fit("rows of " + to_text(shape) +
                       " are cut for so many attention heads: " + std::to_string(heads));
  }
  const int64_t half = shape[0] / heads / 2;
  const int64_t inner = shape.size() == 2 ? shape[1] : 1;
  return swapped(tensor, inverse ? std::array{heads, int64_t{2}, half, inner}
                                 : std::array{heads, half, int64_t{2}, inner})
      .view(shape);
}

// For an operation that has one tensor of each name: a chain's first or last has the source's.
std::string target_of(const std::string& source, const ConversionContext& context) {
  const bool in_chain = (context.to.size() > 1 && context.from.size() == 1) ||
                        (context.to.size() == 1 && context.from.size() > 1);
  return in_chain ? source : context.to.front();
}

std::vector<std::string> chunk_targets(const Json& operation, const ConversionContext& context) {
  if (operation.size() < 3) return context.to;
  const int64_t count = number_in(text_config(context.config), operation[2].get<std::string>());
  if (count < 1 || count > static_cast<int64_t>(kMostInList)) {
    throw does_not_fit("config.json says that it is cut into so many parts: " +
                       std::to_string(count));
  }
  std::vector<std::string> targets;
  for (int64_t i = 0; i < count; ++i) {
    targets.push_back(numbered(context.to.front(), static_cast<size_t>(i)));
  }
  return targets;
}

Collected chunked(const Json& operation, const Collected& tensors,
                  const ConversionContext& context) {
  const TensorSource& tensor = only(tensors);
  const std::vector<std::string> targets = chunk_targets(operation, context);
  std::vector<TensorSource> parts =
      in_equal_parts(tensor, dim_of(operation[1], tensor), targets.size());
  Collected result;
  for (size_t i = 0; i < targets.size(); ++i) result.push_back({targets[i], {parts[i]}});
  return result;
}

// In the order of the rule's patterns, each of which has to be there.
std::vector<TensorSource> in_order(const Collected& tensors, const ConversionContext& context) {
  std::vector<TensorSource> parts;
  for (const std::string& pattern : context.from) {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const auto& each) { return each.first == pattern; });
    if (found == tensors.end()) throw does_not_fit("'" + pattern + "' is not among the tensors");
    parts.insert(parts.end(), found->second.begin(), found->second.end());
  }
  return parts;
}

// Parts of these sizes, which are all of it.
Collected in_parts(const TensorSource& tensor, size_t dim, const std::vector<int64_t>& sizes,
                   const ConversionContext& context) {
  Collected result;
  int64_t start = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || sizes[i] > tensor.shape()[dim] - start) {
      throw does_not_fit("its parts are longer than it is");
    }
    result.push_back({context.to[i], {tensor.narrow(static_cast<int64_t>(dim), start, sizes[i])}});
    start += sizes[i];
  }
  if (start != tensor.shape()[dim]) throw does_not_fit("its parts are shorter than it is");
  return result;
}

// Sizes that are to each other as `shares` are.
std::vector<int64_t> shared_out(const TensorSource& tensor, size_t dim, const Json& shares) {
  constexpr int64_t kMost = int64_t{1} << 40;
  const int64_t size = tensor.shape()[dim];
  int64_t sum = 0;
  for (const Json& share : shares) {
    const auto number = share.get<int64_t>();
    if (number < 1 || number > kMost) throw does_not_fit("parts are numbers above 0");
    sum += number;
  }
  if (size % sum != 0) {
    throw does_not_fit("dimension " + std::to_string(dim) + " of " + to_text(tensor.shape()) +
                       " is cut into parts of " + std::to_string(sum) + " in all");
  }
  std::vector<int64_t> sizes;
  for (const Json& share : shares) sizes.push_back(size / sum * share.get<int64_t>());
  return sizes;
}

// With a third member the parts' shares, else as the module has them.
Collected split(const Json& operation, const Collected& tensors, const ConversionContext& context) {
  const TensorSource& tensor = only(tensors);
  const size_t dim = dim_of(operation[1], tensor);
  if (operation.size() > 2) {
    return in_parts(tensor, dim, shared_out(tensor, dim, operation[2]), context);
  }
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < context.to.size(); ++i) {
    const Shape* shape = i < context.module_shapes.size() ? context.module_shapes[i] : nullptr;
    if (shape == nullptr || shape->size() <= dim) {
      throw does_not_fit("only a checkpoint of the run tells how long its parts are");
    }
    sizes.push_back((*shape)[dim]);
  }
  return in_parts(tensor, dim, sizes, context);
}

Collected stacked_each(const Json& operation, Collected tensors, const ConversionContext& context) {
  const bool is_only = tensors.size() == 1;
  for (auto& [pattern, parts] : tensors) {
    if (is_only && context.to.size() != 1) throw does_not_fit("it becomes several tensors");
    if (is_only) pattern = context.to.front();
    parts = {stacked(operation[1], std::move(parts))};
  }
  return tensors;
}

Collected unstacked(const Json& operation, const Collected& tensors,
                    const ConversionContext& context) {
  Collected result;
  for (const auto& [pattern, parts] : tensors) {
    if (tensors.size() == 1 && context.to.size() != 1) {
      throw does_not_fit("it becomes several tensors");
    }
    const std::string& target = tensors.size() == 1 ? context.to.front() : pattern;
    const TensorSource& tensor = only(parts);
    size_t number = 0;
    for (TensorSource& part : unbound(tensor, dim_of(operation[1], tensor))) {
      result.push_back({numbered(target, number++), {std::move(part)}});
    }
  }
  return result;
}

Collected transposed(const Json& operation, Collected tensors, const ConversionContext& context) {
  const bool is_only = tensors.size() == 1;
  const bool if_unlike = operation.size() > 3;
  for (auto& [pattern, parts] : tensors) {
    if (is_only) pattern = context.to.size() > 1 ? context.from.front() : context.to.front();
    for (TensorSource& part : parts) {
      // Only tensors that differ from the module's. None of the module's own does.
      const bool is_like =
          if_unlike && (context.module_shape == nullptr || *context.module_shape == part.shape());
      if (is_like) continue;
      part = transposed(part, dim_of(operation[1], part), dim_of(operation[2], part));
    }
  }
  return tensors;
}

Collected permuted(const Json& operation, Collected tensors, const ConversionContext& context) {
  const auto part = operation[1].get<std::string>();
  const Json& config =
      !part.empty() && context.config.contains(part) ? context.config[part] : context.config;
  const auto& names = operation[3];
  for (auto& each : tensors) {
    std::string& pattern = each.first;
    const bool wanted =
        names.empty() || std::any_of(names.begin(), names.end(), [&](const Json& name) {
          return pattern.find(name.get<std::string>()) != pattern.npos;
        });
    if (wanted) {
      each.second = {permuted_for_rope(only(each.second), config, operation[2].get<bool>())};
    }
    pattern = target_of(pattern, context);
  }
  return tensors;
}

// core_model_loading.ErnieFuseAndSplitTextVisionExperts: there are as many
// kinds of experts as results. Each list of experts is cut into kinds; each kind is stacked.
Collected fused_kinds(const Json& operation, const Collected& tensors,
                      const ConversionContext& context) {
  const size_t kinds = context.to.size();
  std::vector<std::vector<TensorSource>> fused(kinds);
  for (const std::string& pattern : context.from) {
    const auto found = std::find_if(tensors.begin(), tensors.end(),
                                    [&](const auto& each) { return each.first == pattern; });
    if (found == tensors.end()) throw does_not_fit("'" + pattern + "' is not among the tensors");
    const std::vector<TensorSource>& list = found->second;
    if (list.size() % kinds != 0) {
      throw does_not_fit(counted(list.size(), "expert") + " are of " + counted(kinds, "kind"));
    }
    const auto size = static_cast<std::ptrdiff_t>(list.size() / kinds);
    for (size_t i = 0; i < kinds; ++i) {
      const auto begin = list.begin() + static_cast<std::ptrdiff_t>(i) * size;
      fused[i].push_back(stacked(operation[1], {begin, begin + size}));
    }
  }
  Collected result;
  for (size_t i = 0; i < kinds; ++i) {
    result.push_back(
        {context.to[i], {concatenated(operation[2].get<int64_t>(), std::move(fused[i]))}});
  }
  return result;
}

Collected split_kinds(const Json& operation, const Collected& tensors,
                      const ConversionContext& context) {
  std::vector<std::vector<TensorSource>> split;
  for (const TensorSource& tensor : in_order(tensors, context)) {
    split.push_back(in_equal_parts(tensor, dim_of(operation[2], tensor), context.to.size()));
  }
  Collected result;
  for (size_t i = 0; i < context.to.size(); ++i) {
    size_t number = 0;
    for (const std::vector<TensorSource>& kind : split) {
      for (TensorSource& part : unbound(kind[i], dim_of(operation[1], kind[i]))) {
        result.push_back({numbered(context.to[i], number++), {std::move(part)}});
      }
    }
  }
  return result;
}

}  // namespace

Collected convert(const nlohmann::json& operation, Collected tensors,
                  const ConversionContext& context) {
  const auto name = operation[0].get<std::string>();
  if (name == "chunk") return chunked(operation, tensors, context);
  if (name == "cat") {
    std::vector<TensorSource> parts = in_order(tensors, context);
    if (context.to.size() != 1) throw does_not_fit("it becomes several tensors");
    return {{context.to.front(), {concatenated(operation[1].get<int64_t>(), std::move(parts))}}};
  }
  if (name == "split") return split(operation, tensors, context);
  if (name == "stack") return stacked_each(operation, std::move(tensors), context);
  if (name == "unstack") return unstacked(operation, tensors, context);
  if (name == "transpose") return transposed(operation, std::move(tensors), context);
  if (name == "interleave") {
    const TensorSource& tensor = only(tensors);
    return {{context.to.front(),
             {interleaved(tensor, dim_of(operation[1], tensor), operation[2].get<bool>())}}};
  }
  if (name == "rope") return permuted(operation, std::move(tensors), context);
  if (name == "fuse_kinds") return fused_kinds(operation, tensors, context);
  if (name == "split_kinds") return split_kinds(operation, tensors, context);
  throw does_not_fit("there is no operation '" + name + "'");
}

}  // namespace dsckpt
