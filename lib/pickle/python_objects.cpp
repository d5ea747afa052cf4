#include "pickle/python_objects.h"

namespace dsckpt {
using pickle::Document;
using pickle::ObjectNode;
using pickle::Value;

Value torch_size(Document& document, const Shape& shape) {
  std::vector<Value> dims;
  for (const int64_t dim : shape) dims.push_back(Document::integer(dim));
  return document.object(ObjectNode::Made::reduce, document.global("torch", "Size"),
                         document.tuple({document.tuple(std::move(dims))}));
}

Value ordered_dict(Document& document) {
  return document.object(ObjectNode::Made::reduce, document.global("collections", "OrderedDict"),
                         document.tuple({}));
}

Value first_lr_scheduler(Document& document) {
  const Value dict = document.dict();
  document.set_item(dict, document.intern("last_batch_iteration"), Document::integer(-1));
  return dict;
}

}  // namespace dsckpt
