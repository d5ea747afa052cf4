#include "universal/universal_dir.h"

#include <algorithm>
#include <vector>

#include "pickle/python_objects.h"

namespace dsckpt {
using pickle::Document;
using pickle::Value;
namespace {

Value text_list(Document& document, const std::vector<std::string>& texts) {
  std::vector<Value> items;
  for (const std::string& text : texts) items.push_back(document.string(text));
  return document.list(std::move(items));
}

// The same object as Python's pickle makes of the dataclass.
Value sub_param_shape(Document& document, const SubparamShape& shape) {
  std::vector<Value> dims;
  for (const SubparamShape::Dim& dim : shape.shape) {
    if (!dim.is_tuple) {
      dims.push_back(Document::integer(dim.sizes.front()));
      continue;
    }
    dims.push_back(document.tuple(integers(dim.sizes)));
  }
  Value state = document.dict();
  document.set_item(state, document.intern("patterns"), text_list(document, shape.patterns));
  document.set_item(
      state, document.intern("shape"),
      shape.shape_is_list ? document.list(std::move(dims)) : document.tuple(std::move(dims)));
  document.set_item(state, document.intern("partition_dim"),
                    Document::integer(shape.partition_dim));
  Value object =
      document.object(pickle::ObjectNode::Made::newobj,
                      document.global("deepspeed.checkpoint.universal_checkpoint", "SubparamShape"),
                      document.tuple({}));
  document.set_state(object, state);
  return object;
}

}  // namespace

void lay_out_universal_state(PlanBuilder& plan, const UniversalState& state,
                             const UniversalForm& form) {
  TensorSource value = state.value;
  if (form.vocab_rows) {
    value = value.narrow(0, 0, std::min(*form.vocab_rows, value.shape().at(0)));
  }
  TorchArchiveWriter writer;
  Document& document = writer.document();
  const Value root = document.dict();
  const auto set = [&](std::string_view key, Value item) {
    document.set_item(root, document.intern(key), item);
  };
  if (form.cat_dim) set("cat_dim", Document::integer(*form.cat_dim));
  if (form.n_sub_params) set("param_n_sub_params", Document::integer(*form.n_sub_params));
  if (form.sub_param_shape) {
    set("sub_param_shape", sub_param_shape(document, *form.sub_param_shape));
  }
  if (form.vocab_rows) set("vocab_tensor", Document::boolean(true));
  if (form.ep_num_experts) {
    set("is_expert_param", Document::boolean(true));
    set("ep_num_experts", Document::integer(*form.ep_num_experts));
  }
  Shape shape = value.shape();
  set("param", writer.tensor(writer.storage(std::move(value)), std::move(shape), 0, {},
                             state.requires_grad));
  document.set_root(root);
  std::move(writer).lay_out(plan, state.path());
}

void lay_out_flat_universal_state(PlanBuilder& plan, const UniversalState& state) {
  TorchArchiveWriter writer;
  writer.document().set_root(writer.tensor(writer.storage(state.value.flatten()),
                                           {state.value.numel()}, 0, {}, state.requires_grad));
  std::move(writer).lay_out(plan, state.path());
}

void lay_out_universal_step(PlanBuilder& plan, const std::string& param,
                            const TorchArchive& archive, const Value& step) {
  TorchArchiveWriter writer;
  writer.document().set_root(writer.import(archive, step));
  std::move(writer).lay_out(plan, "zero/" + param + "/step.pt");
}

}  // namespace dsckpt
