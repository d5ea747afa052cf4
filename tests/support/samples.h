// The samples of testdata/samples, which makers have written with CPython's pickle and DeepSpeed's
// own code. Each is read once, by the first who asks. Pickles are bytes here, hexadecimal in the
// files.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace dsckpt::test {

// pickles.json, by testdata/makers/make_pickle_samples.py.
struct PickleSample {
  std::string expression;              // Python
  std::string shown;                   // the value as show() in the maker prints it; "" for objects
  std::array<std::string, 6> pickles;  // by protocol; "" where one cannot do it
};
const std::vector<PickleSample>& pickle_samples();

// tp_rules.json, by testdata/makers/make_rule_samples.py. Tensors are texts:
// "SIZE SIZE: ELEMENT ELEMENT ...". An element k of a slice stands for float(k) / 7, those of a
// merged tensor are bits in hexadecimal.
struct RuleSample {
  std::string title;
  std::string info;    // the pickle of universal_checkpoint_info
  std::string name;    // of the parameter
  std::string slices;  // tensors, "; " between them
  std::string merged;  // `param`
  std::string form;    // the keys beside it
  std::string unused;  // patterns, sorted, a line each
  std::string error;   // class, or "differ" when the plan is run; "" for none
  std::string error_text;
};

struct PlacementSample {
  std::string placement;  // pickle
  std::string map;        // the pickle of ParamAffineMap.to_dict()
  std::string slices;
  std::string merged;
};

struct BadSample {
  std::string python;
  std::string pickle;
  std::string error;  // class
  std::string error_text;
  std::string shape;  // of the parameter of a bad placement
};

struct TpRuleSamples {
  std::vector<RuleSample> rules;
  std::vector<PlacementSample> placements;
  std::vector<BadSample> malformed_infos;  // reading universal_checkpoint_info refuses them
  std::vector<BadSample> bad_assemblies;   // entries of affine maps that cannot be put together
  std::vector<BadSample> bad_placements;
};
const TpRuleSamples& tp_rule_samples();

}  // namespace dsckpt::test
