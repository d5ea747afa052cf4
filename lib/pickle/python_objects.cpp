#include "pickle/python_objects.h"

#include "dsckpt/error.h"

namespace dsckpt {
using pickle::Document;
using pickle::Kind;
using pickle::ObjectNode;
using pickle::Value;

std::span<const Value> list_or_tuple(const Value& value) {
  if (!value.is(Kind::list) && !value.is(Kind::tuple)) {
    throw CorruptError({}, describe(value) + " where list was expected");
  }
  return value.as_sequence();
}

Value torch_size(Document& document, const Shape& shape) {
  return document.object(ObjectNode::Made::reduce, document.global("torch", "Size"),
                         document.tuple({document.tuple(integers(shape))}));
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
