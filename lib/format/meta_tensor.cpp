#include "format/meta_tensor.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "dsckpt/error.h"
#include "pickle/python_objects.h"

namespace dsckpt {
using pickle::Document;
using pickle::Kind;
using pickle::ObjectNode;
using pickle::Value;
namespace {

constexpr std::string_view kModule = "torch._utils";
constexpr std::string_view kRebuild = "_rebuild_meta_tensor_no_storage";

}  // namespace

bool is_meta_tensor(const Value& value) {
  return value.is(Kind::object) && value.as_object().made == ObjectNode::Made::reduce &&
         value.as_object().is_a(kModule, kRebuild) && value.as_object().arguments.is(Kind::tuple);
}

MetaTensor meta_tensor(const Value& value) {
  if (!is_meta_tensor(value)) throw CorruptError({}, "not a meta tensor, but " + describe(value));
  const auto arguments = value.as_object().arguments.as_sequence();
  if (arguments.size() != 4) {
    throw CorruptError({},
                       std::string(kRebuild) + " with " + counted(arguments.size(), "argument"));
  }
  const auto [module, name] = arguments[0].as_global();
  const auto dtype = module == "torch" ? dtype_from_torch_name(name) : std::nullopt;
  if (!dtype || is_quantised(*dtype)) {
    throw UnsupportedError({}, "a tensor of type " + std::string(module) + "." + std::string(name));
  }
  MetaTensor tensor{.dtype = *dtype,
                    .shape = shape_from_pickle(arguments[1]),
                    .strides = shape_from_pickle(arguments[2]),
                    .requires_grad = arguments[3].as_bool()};
  if (tensor.strides.size() != tensor.shape.size()) {
    throw CorruptError({}, "a tensor with other numbers of sizes and strides");
  }
  numel(tensor.shape);
  return tensor;
}

Value make_meta_tensor(Document& document, const MetaTensor& tensor) {
  std::vector<Value> arguments{
      document.global("torch", torch_name(tensor.dtype)), document.tuple(integers(tensor.shape)),
      document.tuple(integers(tensor.strides)), Document::boolean(tensor.requires_grad)};
  return document.object(ObjectNode::Made::reduce, document.global(kModule, kRebuild),
                         document.tuple(std::move(arguments)));
}

std::optional<Shape> shape_with_or_without_values(const TorchArchive& archive, const Value& value) {
  if (TorchArchive::is_tensor(value)) return archive.info(value).shape;
  if (is_meta_tensor(value)) return meta_tensor(value).shape;
  return std::nullopt;
}

}  // namespace dsckpt
