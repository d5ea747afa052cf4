#include "checkpoint/universal_info.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/keyed_hash.h"
#include "base/text.h"
#include "checkpoint/pattern_list.h"
#include "deepspeed/keys.h"
#include "pickle/python_objects.h"

namespace dsckpt {
using pickle::Kind;
using pickle::Value;
namespace {

// Sub-parameters of one parameter; a count in a checkpoint is not bounded by its size.
constexpr int64_t kMaxSubParams = 1 << 16;

using Widths = std::vector<std::vector<int64_t>>;  // of each sub-parameter, by rank

// How much is taken from a file: a pickle may name one text or list very often.
class RulesSize {
 public:
  void add(uint64_t bytes) {
    bytes_ += bytes;
    if (bytes_ > kMaxSize) throw UnsupportedError({}, "the rules are too long together");
  }
  void add_text(std::string_view text) { add(64 + text.size()); }

 private:
  static constexpr uint64_t kMaxSize = uint64_t{128} << 20;
  uint64_t bytes_ = 0;
};

// Patterns that fit a parameter, and what rules cut it into: more than rules have that somebody
// wrote. Many parameters may share one rule that has more; of these so many together.
constexpr uint64_t kOrdinaryParts = 64;
constexpr uint64_t kMostRuleParts = uint64_t{1} << 22;
// Entries of the lists in messages.
constexpr size_t kMostText = 1 << 20;

int64_t sum_of(const std::vector<int64_t>& numbers) {
  uint64_t sum = 0;
  for (const int64_t number : numbers) sum = checked_add(sum, static_cast<uint64_t>(number));
  if (sum > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    throw CorruptError({}, "sizes that add up to " + std::to_string(sum));
  }
  return static_cast<int64_t>(sum);
}

std::vector<int64_t> read_sizes(const Value& value, RulesSize& size_read) {
  std::vector<int64_t> sizes;
  size_read.add(64 + sizeof(int64_t) * list_or_tuple(value).size());
  for (const Value& size : list_or_tuple(value)) {
    sizes.push_back(size.as_int());
    if (sizes.back() < 0) throw CorruptError({}, "is negative: " + std::to_string(sizes.back()));
  }
  return sizes;
}

SubparamShape read_sub_params(const Value& entry, RulesSize& size_read) {
  SubparamShape made;
  for (const auto& [key, value] : entry.as_dict().items) {
    const std::string_view name = key.as_string();
    if (name != "patterns" && name != "shape" && name != "partition_dim") {
      throw UnsupportedError({}, "has a key '" + std::string(name) + "' that is not known");
    }
  }
  for (const Value& pattern : list_or_tuple(entry.at("patterns"))) {
    size_read.add_text(pattern.as_string());
    made.patterns.emplace_back(pattern.as_string());
  }
  const Value shape = entry.at("shape");
  made.shape_is_list = shape.is(Kind::list);
  for (const Value& dim : list_or_tuple(shape)) {
    if (dim.is(Kind::tuple)) {
      made.shape.push_back({true, read_sizes(dim, size_read)});
    } else {
      size_read.add(64);
      made.shape.push_back({false, {dim.as_int()}});
    }
  }
  made.partition_dim = entry.at("partition_dim").as_int();
  const auto rank = static_cast<int64_t>(made.shape.size());
  if (made.partition_dim < -rank || made.partition_dim >= rank) {
    throw CorruptError({}, "has partition_dim " + std::to_string(made.partition_dim) +
                               " of a shape of " + counted(rank, "dimension"));
  }
  return made;
}

std::string quoted_list(const PatternList& list, const std::vector<size_t>& indices) {
  std::string text;
  for (const size_t index : indices) {
    if (text.size() > kMostText) return text + ", ...";
    text += (text.empty() ? "'" : ", '") + list.texts()[index] + "'";
  }
  return text;
}

std::string list_of(const std::vector<Shape>& shapes) {
  std::string text;
  for (const Shape& shape : shapes) text += (text.empty() ? "" : ", ") + to_text(shape);
  return text;
}

[[noreturn]] void do_not_fit(const std::string& why) {
  throw InconsistentError({}, why);
}

void check_equal(const std::vector<Shape>& shapes, const char* how) {
  for (const Shape& shape : shapes) {
    if (shape != shapes.front()) {
      do_not_fit(std::string(how) + ", but the ranks' slices have the shapes " + list_of(shapes));
    }
  }
}

}  // namespace

struct UniversalInfo::Impl {
  // The lists whose patterns are to be used; `lists` is in this order.
  enum List { tp_replicated, averaged, row_parallel, vocabulary, two_sub_params };
  static constexpr std::array kListKeys = {keys::kTpReplicated, keys::kToAverage,
                                           keys::kRowParallel, keys::kVocabulary,
                                           keys::kTwoSubParams};
  std::array<PatternList, kListKeys.size()> lists;
  PatternList pipeline_replicated;
  PatternList affine;
  std::vector<AffineMap> affine_maps;   // of the patterns in `affine`
  PatternList sub_params;               // of all entries, in order
  std::vector<size_t> sub_param_entry;  // which the patterns in `sub_params` belong to
  std::vector<SubparamShape> sub_param_shapes;
  std::map<std::string, Widths, std::less<>> shard_widths;  // by pattern
  std::optional<int64_t> original_vocab_size;
  // By name: keys::kFirstShares.
  struct FirstShares {
    size_t dim = 0;
    std::vector<TpPart> parts;
  };
  KeyedMap<std::string, FirstShares> first_shares;
  // True if the file has a list of what every rank has whole: then all others are cut.
  bool lists_replicated = false;
  double version = 0;
  Where where;
  PatternList user;
  std::vector<TpRule::How> user_hows;  // of the patterns in `user`

  KeyedSet<std::string> used;
  KeyedSet<size_t> used_user;

  RulesSize size_read;
  uint64_t parts = 0;

  void add_user_rules(const std::vector<TpRule>& rules);
  bool use_user_rule(Rule& rule, bool has_map);
  void be_same(Rule& rule, TpRule::How how);

  void read(const Fields& info);
  void read_affine_map(const Fields& map);
  void read_first_shares(const Fields& info);
  void use_first_shares(Rule& rule) const;

  // As get_matched_pattern.
  bool use(List list, const std::string& name) {
    const std::vector<size_t> found = lists[list].matches(name);
    check_one(lists[list], found, kListKeys[list]);
    if (!found.empty()) used.insert(lists[list].texts()[found[0]]);
    return !found.empty();
  }
  // As get_matched_sub_params_pattern: the first one, and no complaint about more.
  std::optional<size_t> use_sub_params(const std::string& name) {
    const std::vector<size_t> found = sub_params.matches(name);
    count_parts(found.size());
    if (found.empty()) return std::nullopt;
    used.insert(sub_params.texts()[found[0]]);
    return found[0];
  }
  static void check_one(const PatternList& list, const std::vector<size_t>& found,
                        std::string_view key) {
    if (found.size() > 1) {
      do_not_fit("several patterns of " + std::string(key) + " match: " + quoted_list(list, found));
    }
  }

  void count_parts(uint64_t of_one, uint64_t times = 1) {
    if (of_one <= kOrdinaryParts) return;
    parts += of_one * times;
    if (parts <= kMostRuleParts) return;
    throw UnsupportedError({}, "the rules fit too often, or make too many parts");
  }

  void decide(Rule& rule);
  void decide_by_lists(Rule& rule, std::optional<size_t> sub_param_pattern);
  std::shared_ptr<const TpCut> cut_of(const Rule& rule, bool is_told) const;
  std::shared_ptr<const TpCut> cut_of_lone_map(const Rule& rule,
                                               std::optional<size_t> sub_param_pattern);
  bool is_told(const std::string& name) const;
  void concatenate(Rule& rule, size_t dim);
  void cut_in_two(Rule& rule);
  void cut_in_sub_params(Rule& rule, size_t pattern);
  // The shares of the ranks in each sub-parameter of `form`, the entry of `pattern`. The file says
  // them; they are equal where it is too old for that. A count of equal sub-parameters becomes
  // their sizes.
  Widths resolve_widths(size_t pattern, SubparamShape& form,
                        const std::vector<Shape>& slices) const;
  // As told_slices(), by sub_param_shard_widths.
  std::optional<std::vector<Shape>> slices_by_widths(const std::string& name,
                                                     const Shape& whole) const;
};

void UniversalInfo::Impl::add_user_rules(const std::vector<TpRule>& rules) {
  for (const TpRule& rule : rules) {
    try {
      user.add(rule.pattern);
    } catch (const UnsupportedError& error) {
      throw UsageError(error.message());
    }
    user_hows.push_back(rule.how);
  }
}

void UniversalInfo::Impl::read(const Fields& info) {
  where = info.where();
  const auto read_list = [&](std::string_view key, PatternList& list) {
    in_context(info.where(key), [&] {
      if (const auto value = info.get(key)) {
        KeyedMap<std::string_view, size_t> times;
        for (const Value& pattern : list_or_tuple(*value)) {
          size_read.add_text(pattern.as_string());
          // A third entry of a pattern adds nothing to the second.
          if (++times[pattern.as_string()] < 3) list.add(std::string(pattern.as_string()));
        }
      }
    });
  };
  if (const auto value = info.get(keys::kAutoTpUnsupported)) {
    in_context(info.where(keys::kAutoTpUnsupported), [&] {
      std::map<std::string_view, std::string_view> reasons;
      for (const auto& [pattern, reason] : value->as_dict().items) {
        reasons.emplace(pattern.as_string(), reason.as_string());
      }
      std::string text;
      for (const auto& [pattern, reason] : reasons) {
        if (text.size() > kMostText) {
          text += ", ...";
          break;
        }
        text += std::string(text.empty() ? "'" : ", '") + std::string(pattern) +
                "': " + std::string(reason);
      }
      if (!text.empty()) {
        throw UnsupportedError({}, "DeepSpeed says these cannot be put together: " + text);
      }
    });
  }
  if (const auto value = info.get(keys::kUniversalVersion)) {
    in_context(info.where(keys::kUniversalVersion), [&] {
      version = value->as_real();
      if (!std::isfinite(version)) throw CorruptError({}, "is not finite");
    });
  }
  if (const auto value = info.get(keys::kOriginalVocabSize)) {
    in_context(info.where(keys::kOriginalVocabSize), [&] {
      original_vocab_size = value->as_int();
      if (*original_vocab_size < 0) throw CorruptError({}, "is negative");
    });
  }
  for (size_t i = 0; i < lists.size(); ++i) read_list(kListKeys[i], lists[i]);
  lists_replicated = !lists[tp_replicated].texts().empty();
  read_list(keys::kPipelineReplicated, pipeline_replicated);

  in_context(info.where(keys::kSubParams), [&] {
    const auto value = info.get(keys::kSubParams);
    if (!value) return;
    for (const Value& entry : list_or_tuple(*value)) {
      const std::string at = "[" + std::to_string(sub_param_shapes.size()) + "]";
      in_context(info.where(std::string(keys::kSubParams) + at), [&] {
        sub_param_shapes.push_back(read_sub_params(entry, size_read));
        for (const std::string& pattern : sub_param_shapes.back().patterns) {
          sub_params.add(pattern);
          sub_param_entry.push_back(sub_param_shapes.size() - 1);
        }
      });
    }
  });
  in_context(info.where(keys::kSubParamShardWidths), [&] {
    const auto value = info.get(keys::kSubParamShardWidths);
    if (!value) return;
    for (const auto& [pattern, rows] : value->as_dict().items) {
      Widths widths;
      for (const Value& row : list_or_tuple(rows)) widths.push_back(read_sizes(row, size_read));
      shard_widths.insert_or_assign(std::string(pattern.as_string()), std::move(widths));
    }
  });
  if (info.has(keys::kAffineMap)) read_affine_map(info.in(keys::kAffineMap));
  read_first_shares(info);
}

void UniversalInfo::Impl::read_first_shares(const Fields& info) {
  const auto saved = info.get(keys::kFirstShares);
  if (!saved) return;
  in_context(info.where(keys::kFirstShares), [&] {
    for (const auto& [name, entry] : saved->as_dict().items) {
      size_read.add_text(name.as_string());
      FirstShares made;
      const int64_t dim = entry.at(keys::kSharesDim).as_int();
      if (dim < 0) throw CorruptError({}, "is negative: " + std::to_string(dim));
      made.dim = static_cast<size_t>(dim);
      const auto rows = list_or_tuple(entry.at(keys::kSharesRows));
      const auto on_every_rank = list_or_tuple(entry.at(keys::kSharesOnEveryRank));
      if (rows.empty() || rows.size() != on_every_rank.size()) {
        throw CorruptError(
            {}, counted(rows.size(), "part") + " and " + counted(on_every_rank.size(), "flag"));
      }
      for (size_t i = 0; i < rows.size(); ++i) {
        made.parts.push_back({read_sizes(rows[i], size_read), on_every_rank[i].as_bool()});
        if (made.parts[i].widths.empty()) throw CorruptError({}, "has a part without ranks");
      }
      first_shares.insert_or_assign(std::string(name.as_string()), std::move(made));
    }
  });
}

// The first ranks' shares have to make the slices that there are.
void UniversalInfo::Impl::use_first_shares(Rule& rule) const {
  const auto found = first_shares.find(rule.name_);
  if (found == first_shares.end()) return;
  const TpCut first(found->second.dim, rule.slice_shapes_.front().size(), found->second.parts);
  bool fits = first.dim() < rule.shape_.size();
  for (size_t rank = 0; fits && rank < rule.slice_shapes_.size(); ++rank) {
    const TpCut cut = first.for_ranks(static_cast<uint32_t>(rule.slice_shapes_.size()));
    Shape shape = rule.shape_;
    shape[first.dim()] = 0;
    for (const TpPart& part : cut.parts()) shape[first.dim()] += part.widths[rank];
    fits = numel(shape) == numel(rule.slice_shapes_[rank]);
  }
  if (!fits ||
      (rule.cut_ != nullptr && rule.slice_shapes_.size() > 1 && !first.has_rows_of(*rule.cut_))) {
    do_not_fit(std::string(keys::kFirstShares) + " are not of such slices");
  }
  rule.cut_ = std::make_shared<const TpCut>(first);
}

void UniversalInfo::Impl::read_affine_map(const Fields& map) {
  if (const auto newer = map.optional_integer("version"); newer && *newer > 1) {
    throw UnsupportedError(map.where("version"),
                           "is " + std::to_string(*newer) + "; up to version 1 is read");
  }
  const auto params = map.get("params");
  if (!params) return;
  KnownAffine known;
  in_context(map.where("params"), [&] {
    for (const auto& [pattern, entry] : params->as_dict().items) {
      const std::string text(pattern.as_string());
      affine.add(text);
      affine_maps.push_back(AffineMap::read(entry, map.where("params[" + text + "]"), known));
    }
  });
}

UniversalInfo::UniversalInfo(const std::vector<TpRule>& user_rules)
    : impl_(std::make_unique<Impl>()) {
  impl_->add_user_rules(user_rules);
}
UniversalInfo::UniversalInfo(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
UniversalInfo::UniversalInfo(UniversalInfo&&) noexcept = default;
UniversalInfo& UniversalInfo::operator=(UniversalInfo&&) noexcept = default;
UniversalInfo::~UniversalInfo() = default;

UniversalInfo UniversalInfo::read(const Fields& info, const std::vector<TpRule>& user_rules) {
  auto impl = std::make_unique<Impl>();
  impl->read(info);
  impl->add_user_rules(user_rules);
  return UniversalInfo(std::move(impl));
}

double UniversalInfo::version() const {
  return impl_->version;
}

bool UniversalInfo::is_pipeline_replicated(const std::string& name) const {
  const std::vector<size_t> found = impl_->pipeline_replicated.matches(name);
  impl_->count_parts(found.size());
  return !found.empty();
}

bool UniversalInfo::has_rule(const std::string& name) const {
  const auto fits = [&](const PatternList& list) { return !list.matches(name).empty(); };
  return fits(impl_->user) || fits(impl_->affine) || fits(impl_->sub_params) ||
         std::any_of(impl_->lists.begin(), impl_->lists.end(), fits);
}

std::optional<std::vector<Shape>> UniversalInfo::told_slices(const std::string& name,
                                                             const Shape& whole) const {
  const std::vector<size_t> found = impl_->affine.matches(name);
  if (found.empty()) return impl_->slices_by_widths(name, whole);
  if (found.size() != 1) return std::nullopt;  // rule_for() refuses several
  std::vector<Shape> shapes;
  for (const AffineMap::Rank& rank : impl_->affine_maps[found.front()].ranks) {
    shapes.push_back(rank.shard_shape);
  }
  return shapes;
}

UniversalInfo::Rule UniversalInfo::replicated(const std::string& name,
                                              const std::vector<Shape>& slice_shapes) {
  Rule rule;
  rule.name_ = name;
  rule.slice_shapes_ = slice_shapes;
  in_context({.tensor = name}, [&] { check_equal(slice_shapes, "is replicated"); });
  rule.shape_ = slice_shapes.front();
  rule.how_ = Rule::Replicated{};
  rule.cut_ = std::make_shared<const TpCut>(TpCut::whole());
  return rule;
}

void UniversalInfo::pass_over(const std::string& name) {
  for (const PatternList& list : impl_->lists) {
    const std::vector<size_t> found = list.matches(name);
    impl_->count_parts(found.size());
    for (const size_t i : found) impl_->used.insert(list.texts()[i]);
  }
}

std::vector<std::string> UniversalInfo::unused_user_rules() const {
  std::vector<std::string> unused;
  for (size_t i = 0; i < impl_->user.texts().size(); ++i) {
    if (!impl_->used_user.contains(i)) unused.push_back(impl_->user.texts()[i]);
  }
  return unused;
}

std::vector<std::string> UniversalInfo::unused_patterns() const {
  std::vector<std::string> unused;
  KeyedSet<std::string_view> seen;
  const auto add = [&](const PatternList& list) {
    for (const std::string& text : list.texts()) {
      if (!impl_->used.contains(text) && seen.insert(text).second) unused.push_back(text);
    }
  };
  for (const PatternList& list : impl_->lists) add(list);
  add(impl_->sub_params);
  return unused;
}

UniversalInfo::Rule UniversalInfo::rule_for(const std::string& name,
                                            const std::vector<Shape>& slice_shapes) {
  Where where = impl_->where;
  where.tensor = name;
  return in_context(where, [&] {
    Rule rule;
    rule.name_ = name;
    rule.slice_shapes_ = slice_shapes;
    if (slice_shapes.empty()) do_not_fit("no tensor-parallel rank has a slice");
    for (const Shape& shape : slice_shapes) numel(shape);  // throws if it does not fit
    impl_->decide(rule);
    return rule;
  });
}

// The first of the user's rules that fits, if any.
bool UniversalInfo::Impl::use_user_rule(Rule& rule, bool has_map) {
  const std::vector<size_t> found = user.matches(rule.name_);
  if (found.empty()) return false;
  used_user.insert(found.begin(), found.end());
  if (has_map) {
    throw UsageError("'" + rule.name_ +
                     "' has an affine map, which says exactly how its slices go together; '" +
                     user.texts()[found[0]] + "' says otherwise");
  }
  for (const size_t other : found) {
    if (user_hows[other] == user_hows[found[0]]) continue;
    throw UsageError("'" + rule.name_ + "' has two rules: " + quoted_list(user, found));
  }
  switch (user_hows[found[0]]) {
    case TpRule::How::cat_0:
    case TpRule::How::cat_1: {
      const size_t dim = user_hows[found[0]] == TpRule::How::cat_1 ? 1 : 0;
      concatenate(rule, dim);
      rule.form_.cat_dim = static_cast<int64_t>(dim);
      break;
    }
    case TpRule::How::replicated:
    case TpRule::How::average:
    case TpRule::How::sum:
      be_same(rule, user_hows[found[0]]);
      break;
  }
  return true;
}

void UniversalInfo::Impl::be_same(Rule& rule, TpRule::How how) {
  const bool is_average = how == TpRule::How::average;
  const bool is_sum = how == TpRule::How::sum;
  check_equal(rule.slice_shapes_, is_average ? "is averaged"
                                  : is_sum   ? "is summed"
                                             : "is replicated");
  rule.shape_ = rule.slice_shapes_.front();
  if (is_average) {
    rule.how_ = Rule::Averaged{};
  } else if (is_sum) {
    rule.how_ = Rule::Summed{};
  } else {
    rule.how_ = Rule::Replicated{};
  }
}

void UniversalInfo::Impl::decide(Rule& rule) {
  const std::string& name = rule.name_;
  const std::vector<Shape>& shapes = rule.slice_shapes_;
  const std::vector<size_t> maps = affine.matches(name);
  check_one(affine, maps, keys::kAffineMap);
  if (!maps.empty()) {
    // The lists are there for readers that know no affine maps.
    for (const List list : {tp_replicated, averaged, row_parallel, vocabulary, two_sub_params}) {
      use(list, name);
    }
  }
  const std::optional<size_t> sub_param_pattern = use_sub_params(name);

  const bool by_user = use_user_rule(rule, !maps.empty());
  if (by_user) {
    // The lists' patterns count as used: the user's word takes their place.
    for (const List list : {tp_replicated, averaged, row_parallel, two_sub_params}) use(list, name);
  } else if (!maps.empty()) {
    const AffineMap& map = affine_maps[maps[0]];
    std::vector<Shape> shard_shapes;
    for (const AffineMap::Rank& rank : map.ranks) shard_shapes.push_back(rank.shard_shape);
    if (shard_shapes != shapes) {
      do_not_fit("the affine map is for shards of the shapes " + list_of(shard_shapes) +
                 ", the ranks' slices have " + list_of(shapes));
    }
    for (const AffineMap::Rank& rank : map.ranks) count_parts(rank.pieces.size());
    auto assembly = std::make_shared<const AffineAssembly>(map);
    rule.shape_ = assembly->shape();
    rule.how_ = std::move(assembly);
  } else {
    decide_by_lists(rule, sub_param_pattern);
  }
  const bool is_lone_map = !by_user && !maps.empty() && shapes.size() == 1;
  rule.cut_ = is_lone_map ? cut_of_lone_map(rule, sub_param_pattern)
                          : cut_of(rule, by_user || shapes.size() > 1 || is_told(name));
  if (!by_user) use_first_shares(rule);

  if (use(vocabulary, name)) {
    if (!original_vocab_size) {
      throw CorruptError({}, "has no key 'original_vocab_size'");
    }
    if (rule.shape_.size() < 2) {
      do_not_fit("is a vocabulary of shape " + to_text(rule.shape_) + ", not a matrix");
    }
    rule.form_.vocab_rows = std::min(*original_vocab_size, rule.shape_[0]);
  }
}

void UniversalInfo::Impl::decide_by_lists(Rule& rule, std::optional<size_t> sub_param_pattern) {
  const std::string& name = rule.name_;
  if (use(tp_replicated, name)) {
    be_same(rule, TpRule::How::replicated);
  } else if (use(averaged, name)) {
    be_same(rule, TpRule::How::average);
  } else if (use(two_sub_params, name)) {
    cut_in_two(rule);
  } else if (sub_param_pattern) {
    cut_in_sub_params(rule, *sub_param_pattern);
  } else {
    const size_t dim = use(row_parallel, name) ? 1 : 0;
    concatenate(rule, dim);
    rule.form_.cat_dim = static_cast<int64_t>(dim);
  }
}

// True if the lists say that the parameter is cut by their rule.
bool UniversalInfo::Impl::is_told(const std::string& name) const {
  if (lists_replicated || !sub_params.matches(name).empty()) return true;
  return std::any_of(lists.begin(), lists.end(), [&](const PatternList& list) {
    return &list != &lists[vocabulary] && !list.matches(name).empty();
  });
}

std::shared_ptr<const TpCut> UniversalInfo::Impl::cut_of(const Rule& rule, bool is_told) const {
  if (!is_told) return nullptr;
  if (const auto* assembly = std::get_if<Rule::Assembled>(&rule.how_)) {
    const std::optional<TpCut> cut = (*assembly)->cut();
    return cut ? std::make_shared<const TpCut>(*cut) : nullptr;
  }
  if (std::holds_alternative<Rule::Summed>(rule.how_)) {
    return std::make_shared<const TpCut>(TpCut::sum());
  }
  if (std::holds_alternative<Rule::Averaged>(rule.how_)) {
    return std::make_shared<const TpCut>(TpCut::mean());
  }
  const auto* how = std::get_if<Rule::Concatenated>(&rule.how_);
  if (how == nullptr || rule.shape_.empty()) return std::make_shared<const TpCut>(TpCut::whole());
  std::vector<TpPart> shares;
  for (const auto& [rank, start, length] : how->parts) {
    if (rank == 0) shares.emplace_back();
    shares.back().widths.push_back(length);
  }
  return std::make_shared<const TpCut>(
      TpCut(how->dim, rule.slice_shapes_.front().size(), std::move(shares)));
}

// The map of a lone rank has a piece of each part that the lists tell.
std::shared_ptr<const TpCut> UniversalInfo::Impl::cut_of_lone_map(
    const Rule& rule, std::optional<size_t> sub_param_pattern) {
  Rule by_lists;
  by_lists.name_ = rule.name_;
  by_lists.slice_shapes_ = rule.slice_shapes_;
  decide_by_lists(by_lists, sub_param_pattern);
  std::shared_ptr<const TpCut> cut = cut_of(by_lists, is_told(rule.name_));
  if (cut == nullptr) return nullptr;
  const size_t pieces = std::get<Rule::Assembled>(rule.how_)->pieces();
  return pieces == std::max<size_t>(cut->parts().size(), 1) ? cut : nullptr;
}

namespace {

// The shape of slices of the shapes `views` put together along `dim`.
Shape joined(const std::vector<Shape>& views, size_t dim) {
  Shape shape = views.front();
  std::vector<int64_t> sizes;
  for (const Shape& view : views) {
    Shape rest = view;
    if (dim >= view.size() || view.size() != shape.size()) {
      do_not_fit("is cut along dimension " + std::to_string(dim) +
                 ", but the ranks' slices have the shapes " + list_of(views));
    }
    rest[dim] = shape[dim];
    if (rest != shape) {
      do_not_fit("the ranks' slices differ not only in dimension " + std::to_string(dim) + ": " +
                 list_of(views));
    }
    sizes.push_back(view[dim]);
  }
  shape[dim] = sum_of(sizes);
  numel(shape);
  return shape;
}

}  // namespace

void UniversalInfo::Impl::concatenate(Rule& rule, size_t dim) {
  Rule::Concatenated how{.dim = dim, .views = rule.slice_shapes_, .parts = {}};
  // torch.cat takes no scalars, but one alone is already whole.
  if (how.views.size() == 1 && how.views[0].empty() && dim == 0) {
    rule.shape_ = {};
    how.parts.push_back({0, 0, 1});
  } else {
    rule.shape_ = joined(how.views, dim);
    for (size_t rank = 0; rank < how.views.size(); ++rank) {
      how.parts.push_back({rank, 0, how.views[rank][dim]});
    }
  }
  rule.how_ = std::move(how);
}

void UniversalInfo::Impl::cut_in_two(Rule& rule) {
  Rule::Concatenated how{.dim = 0, .views = rule.slice_shapes_, .parts = {}};
  rule.shape_ = joined(how.views, 0);
  for (const bool second : {false, true}) {
    for (size_t rank = 0; rank < how.views.size(); ++rank) {
      const int64_t rows = how.views[rank][0];
      // torch.chunk gives a single row as one chunk only.
      if (rows == 1)
        do_not_fit("rank " + std::to_string(rank) + " has one row of two sub-parameters");
      const int64_t half = rows - rows / 2;
      how.parts.push_back({rank, second ? half : 0, second ? rows - half : half});
    }
  }
  rule.how_ = std::move(how);
  rule.form_.cat_dim = 0;
  rule.form_.n_sub_params = 2;
}

namespace {

// The dimension along which sub-parameters are cut; negative ones count from the last.
size_t partition_dim_of(const SubparamShape& form) {
  const auto rank = static_cast<int64_t>(form.shape.size());
  return static_cast<size_t>(form.partition_dim + (form.partition_dim < 0 ? rank : 0));
}

// Puts the sizes of equal sub-parameters in the place of their number.
void count_out(SubparamShape& form, size_t dim, const std::vector<Shape>& slices) {
  SubparamShape::Dim& sizes = form.shape[dim];
  const int64_t count = sizes.sizes[0];
  std::vector<int64_t> held;
  for (const Shape& slice : slices) {
    if (slice.size() <= dim) {
      do_not_fit("has sub-parameters along dimension " + std::to_string(dim) +
                 ", but the ranks' slices have the shapes " + list_of(slices));
    }
    held.push_back(slice[dim]);
  }
  const int64_t full = sum_of(held);
  if (count <= 0 || full % count != 0) {
    do_not_fit("has " + counted(count, "sub-parameter") + " that cannot be equal parts of " +
               std::to_string(full));
  }
  if (count > kMaxSubParams) throw UnsupportedError({}, counted(count, "sub-parameter"));
  sizes = {true, std::vector<int64_t>(static_cast<size_t>(count), full / count)};
  form.shape_is_list = false;
}

// The widths of sub-parameters that `ranks` share evenly.
Widths even_widths(const std::vector<int64_t>& sizes, size_t ranks) {
  Widths widths;
  for (const int64_t size : sizes) {
    const auto degree = static_cast<int64_t>(ranks);
    if (size % degree != 0) {
      do_not_fit("has a sub-parameter of size " + std::to_string(size) + " that " +
                 counted(ranks, "rank") +
                 " cannot share evenly, and its checkpoint is too old to say how they do");
    }
    widths.emplace_back(ranks, size / degree);
  }
  return widths;
}

void check_widths(const Widths& widths, const std::vector<int64_t>& sizes, size_t ranks) {
  if (widths.empty()) do_not_fit("has no sub-parameters");
  if (widths.size() != sizes.size()) {
    do_not_fit("has " + counted(sizes.size(), "sub-parameter") + " but widths of " +
               std::to_string(widths.size()));
  }
  for (size_t i = 0; i < widths.size(); ++i) {
    if (widths[i].size() != ranks) {
      do_not_fit("has widths of " + counted(widths[i].size(), "rank") +
                 " for one sub-parameter, "
                 "but slices of " +
                 std::to_string(ranks));
    }
    if (sum_of(widths[i]) != sizes[i]) {
      do_not_fit("has a sub-parameter of size " + std::to_string(sizes[i]) +
                 " whose widths add up to " + std::to_string(sum_of(widths[i])));
    }
  }
}

// The shape of the whole parameter. One dimension may be open: whatever the elements of
// all slices leave. _resolve_logical_shape.
Shape logical_shape(const SubparamShape& form, const std::vector<Shape>& slices) {
  Shape logical;
  std::optional<size_t> open;
  uint64_t known = 1;
  for (size_t i = 0; i < form.shape.size(); ++i) {
    const SubparamShape::Dim& size = form.shape[i];
    logical.push_back(size.is_tuple ? sum_of(size.sizes) : size.sizes[0]);
    if (logical[i] >= 0) {
      known = checked_mul(known, static_cast<uint64_t>(logical[i]));
    } else if (std::exchange(open, i)) {
      do_not_fit("has sub-parameters of a shape with two open dimensions");
    }
  }
  uint64_t total = 0;
  for (const Shape& slice : slices) {
    total = checked_add(total, static_cast<uint64_t>(numel(slice)));
  }
  if (open) {
    if (known == 0 || total % known != 0) {
      do_not_fit("has sub-parameters of " + counted(known, "element") + " that do not divide " +
                 std::to_string(total));
    }
    logical[*open] = static_cast<int64_t>(std::min(total / known, uint64_t{1} << 62));
  }
  numel(logical);
  return logical;
}

// The slices as they are cut: `logical`, as wide along `dim` as a rank's shares are.
std::vector<Shape> views_of_slices(const Shape& logical, size_t dim, const Widths& widths,
                                   const std::vector<Shape>& slices) {
  std::vector<Shape> views;
  for (size_t rank = 0; rank < slices.size(); ++rank) {
    std::vector<int64_t> held;
    for (const auto& row : widths) held.push_back(row[rank]);
    Shape view = logical;
    view[dim] = sum_of(held);
    if (numel(view) != numel(slices[rank])) {
      do_not_fit("rank " + std::to_string(rank) + " holds " +
                 counted(numel(slices[rank]), "element") +
                 ", but the widths of its sub-parameters make the shape " + to_text(view));
    }
    views.push_back(std::move(view));
  }
  return views;
}

}  // namespace

Widths UniversalInfo::Impl::resolve_widths(size_t pattern, SubparamShape& form,
                                           const std::vector<Shape>& slices) const {
  const size_t dim = partition_dim_of(form);
  const std::string& text = sub_params.texts()[pattern];
  if (version >= 0.4) {
    const auto found = shard_widths.find(text);
    if (found == shard_widths.end()) {
      throw CorruptError({}, "has no sub_param_shard_widths for '" + text + "'");
    }
    if (!form.shape[dim].is_tuple) {
      throw CorruptError(
          {}, "counts the sub-parameters of '" + text + "' instead of giving their sizes");
    }
    return found->second;
  }
  if (!form.shape[dim].is_tuple) count_out(form, dim, slices);
  return even_widths(form.shape[dim].sizes, slices.size());
}

std::optional<std::vector<Shape>> UniversalInfo::Impl::slices_by_widths(const std::string& name,
                                                                        const Shape& whole) const {
  const std::vector<size_t> found = sub_params.matches(name);
  const bool by_other_rule = !user.matches(name).empty() ||
                             std::any_of(lists.begin(), lists.end(), [&](const PatternList& list) {
                               return &list != &lists[row_parallel] &&
                                      &list != &lists[vocabulary] && !list.matches(name).empty();
                             });
  if (version < 0.4 || found.empty() || by_other_rule) return std::nullopt;
  const auto widths = shard_widths.find(sub_params.texts()[found[0]]);
  if (widths == shard_widths.end() || widths->second.empty()) return std::nullopt;
  const SubparamShape& form = sub_param_shapes[sub_param_entry[found[0]]];
  const size_t dim = partition_dim_of(form);
  const Shape logical = logical_shape(form, {whole});
  std::vector<Shape> slices(widths->second.front().size(), logical);
  for (size_t rank = 0; rank < slices.size(); ++rank) {
    std::vector<int64_t> held;
    for (const auto& row : widths->second) {
      if (row.size() != slices.size()) return std::nullopt;  // which rule_for() refuses
      held.push_back(row[rank]);
    }
    slices[rank][dim] = sum_of(held);
  }
  return slices;
}

void UniversalInfo::Impl::cut_in_sub_params(Rule& rule, size_t pattern) {
  const std::vector<Shape>& slices = rule.slice_shapes_;
  count_parts(sub_param_shapes[sub_param_entry[pattern]].patterns.size());
  SubparamShape form = sub_param_shapes[sub_param_entry[pattern]];
  const Widths widths = resolve_widths(pattern, form, slices);
  count_parts(widths.size(), slices.size());
  const size_t dim = partition_dim_of(form);
  check_widths(widths, form.shape[dim].sizes, slices.size());
  const Shape logical = logical_shape(form, slices);

  Rule::Concatenated how{
      .dim = dim, .views = views_of_slices(logical, dim, widths, slices), .parts = {}};
  std::vector<int64_t> starts(slices.size(), 0);
  for (const auto& row : widths) {
    for (size_t rank = 0; rank < slices.size(); ++rank) {
      how.parts.push_back({rank, starts[rank], row[rank]});
      starts[rank] += row[rank];
    }
  }
  rule.shape_ = joined(how.views, dim);
  rule.how_ = std::move(how);
  rule.form_.sub_param_shape = std::move(form);
}

TensorSource UniversalInfo::Rule::merge(std::vector<TensorSource> slices,
                                        std::string_view state) const {
  bool fits = slices.size() == slice_shapes_.size();
  for (size_t i = 0; fits && i < slices.size(); ++i) fits = slices[i].shape() == slice_shapes_[i];
  if (!fits) {
    throw InconsistentError(
        {.tensor = name_},
        std::string(state) + " has slices of different shapes than " + list_of(slice_shapes_));
  }
  const std::string what = std::string(state) + " of '" + name_ + "' on tensor-parallel";
  return in_context({.tensor = name_}, [&] {
    if (const auto* assembly = std::get_if<Assembled>(&how_)) {
      return (*assembly)->merge(slices, what);
    }
    if (std::holds_alternative<Averaged>(how_)) return TensorSource::mean(std::move(slices));
    const bool is_sum = std::holds_alternative<Summed>(how_);
    if (is_sum && state == "fp32") return TensorSource::sum(std::move(slices));
    if (is_sum || std::holds_alternative<Replicated>(how_)) {
      const std::string last = std::to_string(slices.size() - 1);
      return TensorSource::same(std::move(slices),
                                what + " ranks 0 " + (last == "1" ? "and " : "to ") + last);
    }
    const auto& how = std::get<Concatenated>(how_);
    for (size_t i = 0; i < slices.size(); ++i) {
      if (slices[i].shape() != how.views[i]) slices[i] = slices[i].view(how.views[i]);
    }
    if (how.parts.size() == 1) return slices.front();
    std::vector<TensorSource> parts;
    parts.reserve(how.parts.size());
    for (const auto& [rank, start, length] : how.parts) {
      const TensorSource& slice = slices[rank];
      const bool whole = length == slice.shape()[how.dim];
      parts.push_back(whole ? slice : slice.narrow(static_cast<int64_t>(how.dim), start, length));
    }
    return TensorSource::cat(static_cast<int64_t>(how.dim), std::move(parts));
  });
}

}  // namespace dsckpt
