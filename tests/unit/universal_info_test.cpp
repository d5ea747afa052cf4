// UniversalInfo against DeepSpeed's merge_tp_slices.
#include "checkpoint/universal_info.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "support/tp_rule_tools.h"

namespace dsckpt {
namespace {

using test::expect_error;
using test::SampleSlice;
using test::SliceFiles;

// Fields of a pickle, as if it stood in a model-states file.
class Info {
 public:
  explicit Info(std::string_view pickle)
      : document_(pickle::Document::parse(as_byte_span(pickle))), shard_(shard(files_)) {}

  Fields fields() const { return {shard_, document_.root(), "universal_checkpoint_info"}; }
  UniversalInfo read() const { return UniversalInfo::read(fields()); }

 private:
  static Shard shard(SliceFiles& files) {
    TorchArchiveWriter writer;
    writer.document().set_root(writer.document().dict());
    PlanBuilder builder;
    std::move(writer).lay_out(builder, "mp_rank_00_model_states.pt");
    test::run_plan_to(builder.finish(), files.inputs(), files.folder().path());
    const FileId file = files.inputs().add(files.folder().path() / "mp_rank_00_model_states.pt",
                                           files.folder().path());
    return {.name = {ShardName::Kind::model_states},
            .path = files.folder().path() / "mp_rank_00_model_states.pt",
            .display = files.inputs()[file].display(),
            .archive = TorchArchive::open(files.inputs(), file)};
  }

  SliceFiles files_;
  pickle::Document document_;
  Shard shard_;
};

UniversalInfo info_of(std::string_view pickle) {
  return Info(pickle).read();
}

std::string python_of(const std::vector<std::string>& texts) {
  std::string text = "[";
  for (const std::string& one : texts) text += (text.size() > 1 ? ", '" : "'") + one + "'";
  return text + "]";
}

std::string python_of(const SubparamShape::Dim& dim) {
  if (!dim.is_tuple) return std::to_string(dim.sizes.at(0));
  std::string text = "(";
  for (size_t i = 0; i < dim.sizes.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(dim.sizes[i]);
  }
  return text + (dim.sizes.size() == 1 ? ",)" : ")");
}

// As form_text() of testdata/makers/make_rule_samples.py.
std::string form_text(const UniversalForm& form) {
  std::vector<std::string> keys;
  if (form.cat_dim) keys.push_back("cat_dim=" + std::to_string(*form.cat_dim));
  if (form.n_sub_params) keys.push_back("param_n_sub_params=" + std::to_string(*form.n_sub_params));
  if (form.sub_param_shape) {
    const SubparamShape& sub = *form.sub_param_shape;
    std::string shape;
    for (const auto& dim : sub.shape) shape += (shape.empty() ? "" : ", ") + python_of(dim);
    if (sub.shape_is_list) {
      shape = "[" + shape + "]";
    } else {
      shape = "(" + shape + (sub.shape.size() == 1 ? ",)" : ")");
    }
    keys.push_back("sub_param_shape=" + python_of(sub.patterns) + " " + shape + " " +
                   std::to_string(sub.partition_dim));
  }
  if (form.vocab_rows) keys.push_back("vocab_tensor=True");
  std::string text;
  for (const std::string& key : keys) text += (text.empty() ? "" : "; ") + key;
  return text;
}

TEST(UniversalInfo, MergesAsDeepSpeedDoes) {
  size_t merged_count = 0;
  for (const test::RuleSample& sample : test::tp_rule_samples().rules) {
    if (!sample.error.empty()) continue;
    SCOPED_TRACE(sample.title);
    ++merged_count;
    UniversalInfo info = info_of(sample.info);
    const std::vector<SampleSlice> slices = test::parse_slices(sample.slices);
    SliceFiles files;
    try {
      const UniversalInfo::Rule rule =
          info.rule_for(std::string(sample.name), test::shapes_of(slices));
      TensorSource merged = rule.merge(files.sources(slices), "fp32");
      EXPECT_EQ(merged.shape(), rule.shape());
      if (const auto rows = rule.form().vocab_rows) merged = merged.narrow(0, 0, *rows);
      EXPECT_EQ(files.read(merged), test::parse_merged(sample.merged));
      EXPECT_EQ(form_text(rule.form()), sample.form);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    std::vector<std::string> unused = info.unused_patterns();
    std::sort(unused.begin(), unused.end());
    std::string lines;
    for (const std::string& pattern : unused) lines += (lines.empty() ? "" : "\n") + pattern;
    EXPECT_EQ(lines, sample.unused);
  }
  EXPECT_GE(merged_count, 60u);
}

TEST(UniversalInfo, RefusesWhatDeepSpeedRefuses) {
  size_t refused = 0;
  for (const test::RuleSample& sample : test::tp_rule_samples().rules) {
    if (sample.error.empty() || sample.error == "differ") continue;
    SCOPED_TRACE(sample.title);
    ++refused;
    UniversalInfo info = info_of(sample.info);
    const auto decide = [&] {
      info.rule_for(std::string(sample.name), test::shapes_of(test::parse_slices(sample.slices)));
    };
    expect_error(sample.error, sample.error_text, decide);
    const std::string error = test::error_of(decide);
    EXPECT_NE(error.find("mp_rank_00_model_states.pt"), std::string::npos) << error;
    EXPECT_NE(error.find(sample.name), std::string::npos) << error;
  }
  EXPECT_GE(refused, 30u);
}

TEST(UniversalInfo, CopiesThatDifferAreFoundWhenThePlanRuns) {
  size_t differing = 0;
  for (const test::RuleSample& sample : test::tp_rule_samples().rules) {
    if (sample.error != "differ") continue;
    SCOPED_TRACE(sample.title);
    ++differing;
    UniversalInfo info = info_of(sample.info);
    const std::vector<SampleSlice> slices = test::parse_slices(sample.slices);
    SliceFiles files;
    const TensorSource merged = info.rule_for(std::string(sample.name), test::shapes_of(slices))
                                    .merge(files.sources(slices), "fp32");
    expect_error("foreign", sample.error_text, [&] { files.read(merged); });
  }
  EXPECT_GE(differing, 3u);
}

TEST(UniversalInfo, NamesTheFieldThatIsMalformed) {
  for (const test::BadSample& sample : test::tp_rule_samples().malformed_infos) {
    SCOPED_TRACE(sample.python);
    const Info info(sample.pickle);
    expect_error(sample.error, sample.error_text, [&] { info.read(); });
    const std::string error = test::error_of([&] { info.read(); });
    EXPECT_NE(error.find("mp_rank_00_model_states.pt"), std::string::npos) << error;
  }
}

TEST(UniversalInfo, WithoutRulesConcatenatesAlongDimension0) {
  UniversalInfo info;
  EXPECT_EQ(info.version(), 0);
  EXPECT_FALSE(info.is_pipeline_replicated("w"));
  const UniversalInfo::Rule rule = info.rule_for("w", {{2, 3}, {1, 3}});
  EXPECT_EQ(rule.shape(), (Shape{3, 3}));
  UniversalForm form;
  form.cat_dim = 0;
  EXPECT_EQ(rule.form(), form);
  EXPECT_EQ(info.unused_patterns(), std::vector<std::string>{});
}

// torch.cat takes no scalars, so DeepSpeed's tool stops; there is nothing to put together.
TEST(UniversalInfo, TakesAScalarOfOneRankAsItIs) {
  UniversalInfo info;
  SliceFiles files;
  const TensorSource merged = info.rule_for("w", {{}}).merge(files.sources({{{}, {5}}}), "fp32");
  EXPECT_EQ(files.read(merged), (test::SampleTensor{{}, {std::bit_cast<uint32_t>(5.0F / 7.0F)}}));
}

TEST(UniversalInfo, RefusesNoRanksAndShapesThatDoNotFit) {
  UniversalInfo info;
  expect_error("InconsistentError", "no tensor-parallel rank", [&] { info.rule_for("w", {}); });
  const int64_t large = int64_t{1} << 40;
  expect_error("CorruptError", "w: ", [&] { info.rule_for("w", {{large, large}}); });
  expect_error("CorruptError", "w: ", [&] { info.rule_for("w", {{-1}}); });
  expect_error("CorruptError", "w: ", [&] {
    info.rule_for("w", {{int64_t{1} << 62, 1}, {int64_t{1} << 62, 1}});
  });
}

TEST(UniversalInfo, RefusesSlicesOtherThanTheRuleWasMadeFor) {
  UniversalInfo info;
  SliceFiles files;
  const SampleSlice slice{{2, 3}, {1, 2, 3, 4, 5, 6}};
  const UniversalInfo::Rule rule = info.rule_for("w", {{2, 3}, {2, 3}});
  expect_error("InconsistentError", "exp_avg",
               [&] { rule.merge(files.sources({slice}), "exp_avg"); });
  expect_error("InconsistentError", "exp_avg", [&] {
    rule.merge(files.sources({slice, {{3, 2}, slice.numbers}}), "exp_avg");
  });
}

std::string pickled(const std::function<pickle::Value(pickle::Document&)>& build) {
  pickle::Document document;
  return pickle::write_protocol2(build(document));
}

std::string info_with_patterns(std::string_view key, const std::vector<std::string>& patterns) {
  return pickled([&](pickle::Document& document) {
    const pickle::Value list = document.list();
    for (const std::string& pattern : patterns) document.append(list, document.string(pattern));
    const pickle::Value dict = document.dict();
    document.set_item(dict, document.string(key), list);
    return dict;
  });
}

TEST(UniversalInfo, APatternIsUsedOnceAnyParameterUsesIt) {
  UniversalInfo info = info_of(info_with_patterns("parameter_with_row_parallelism_patterns",
                                                  {"^a$", R"(^b\.\d$)", "^c$", "^a$"}));
  EXPECT_EQ(info.unused_patterns(), (std::vector<std::string>{"^a$", R"(^b\.\d$)", "^c$"}));
  EXPECT_EQ(info.rule_for("b.3", {{2, 2}}).form().cat_dim, 1);
  EXPECT_EQ(info.rule_for("d", {{2, 2}}).form().cat_dim, 0);
  EXPECT_EQ(info.unused_patterns(), (std::vector<std::string>{"^a$", "^c$"}));
  EXPECT_EQ(info.rule_for("c", {{2, 2}}).form().cat_dim, 1);
  EXPECT_EQ(info.unused_patterns(), std::vector<std::string>{"^a$"});
}

TEST(UniversalInfo, PipelineReplicasAreMatchedFromTheStartAndNeverUnused) {
  const UniversalInfo info =
      info_of(info_with_patterns("pipeline_replicated_parameter_patterns", {"tied_modules.embed"}));
  EXPECT_TRUE(info.is_pipeline_replicated("tied_modules.embed.word.weight"));
  EXPECT_FALSE(info.is_pipeline_replicated("x.tied_modules.embed.word.weight"));
  EXPECT_EQ(info.unused_patterns(), std::vector<std::string>{});
}

TEST(UniversalInfo, ACountOfSubParametersIsBounded) {
  const std::string legacy = pickled([](pickle::Document& document) {
    const pickle::Value entry = document.dict();
    document.set_item(entry, document.string("patterns"), document.list({document.string("w")}));
    document.set_item(entry, document.string("shape"),
                      document.tuple({document.integer(int64_t{1} << 60), document.integer(-1)}));
    document.set_item(entry, document.string("partition_dim"), document.integer(0));
    const pickle::Value dict = document.dict();
    document.set_item(dict, document.string("parameter_with_sub_params"), document.list({entry}));
    return dict;
  });
  UniversalInfo info = info_of(legacy);
  expect_error("UnsupportedError", "sub-parameters", [&] {
    info.rule_for("w", {{int64_t{1} << 60, 0}});
  });
}

}  // namespace
}  // namespace dsckpt
