#include "checkpoint/names/hub_names.h"

#include <re2/re2.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "base/keyed_hash.h"
#include "base/patterns.h"
#include "base/text.h"
#include "checkpoint/names/conversion.h"
#include "checkpoint/names/rules_text.h"
#include "dsckpt/error.h"

namespace dsckpt {
namespace {

using Json = nlohmann::json;

// The first of the releases whose modules have names of their own.
constexpr int kFirstRelease = 5;
// Tensors that there are more of on the hub than in the module. Names of more than these would fill
// the memory; the largest models have a tenth.
constexpr size_t kMostMore = 1 << 20;

// The value of the line [KIND, KEY, VALUE] of `rules`; discarded if there is none.
Json row_of(std::string_view rules, std::string_view kind, const std::string& key) {
  // As json.dumps writes it.
  const std::string begin = "\n[\"" + std::string(kind) + "\", " + dump(Json(key)) + ", ";
  const size_t at = rules.find(begin);
  if (at == rules.npos) return Json(Json::value_t::discarded);
  const size_t end = rules.find('\n', at + 1);
  Json row = parse_json(rules.substr(at + 1, end - at - 1));
  return row.is_array() && row.size() == 3 ? std::move(row[2]) : Json(Json::value_t::discarded);
}

std::string text_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::string release_in(std::string_view rules) {
  const Json release = row_of(rules, "release", "transformers");
  return release.is_string() ? release.get<std::string>() : std::string();
}

// One way of a rule: core_model_loading.WeightTransform.
struct Transform {
  struct Branch {
    size_t source = 0;  // the number of its pattern
    std::unique_ptr<RE2> find;
    std::vector<std::unique_ptr<RE2>> not_behind;  // of the text in front of what is found
    std::vector<std::unique_ptr<RE2>> not_ahead;   // of that behind it
  };
  // Below which part of the model it counts; nullopt: anywhere.
  std::optional<std::string> scope;
  std::string base;  // what may stand in front of the scope
  std::vector<Branch> branches;
  std::vector<std::string> from;
  std::vector<std::string> to;
  Json operations;        // of a converter
  bool is_group = false;  // core_model_loading.GroupWeightRename

  bool is_converter() const { return !operations.empty(); }
};

struct Match {
  size_t source;
  std::string name;  // with the first of the targets in the place of what was found
};

std::string with_dot(const std::string& prefix) {
  return prefix.empty() ? prefix : prefix + ".";
}

// The texts for \1 to \9 of `replacement`.
std::string filled_in(const std::string& replacement,
                      const std::array<re2::StringPiece, 10>& groups) {
  std::string text;
  for (size_t i = 0; i < replacement.size(); ++i) {
    const bool is_group = replacement[i] == '\\' && i + 1 < replacement.size() &&
                          replacement[i + 1] >= '1' && replacement[i + 1] <= '9';
    if (!is_group) {
      text += replacement[i];
      continue;
    }
    const re2::StringPiece& group = groups[static_cast<size_t>(replacement[++i] - '0')];
    if (group.data() != nullptr) text.append(group.data(), group.size());
  }
  return text;
}

// The first place in `name` where the branch fits.
bool is_found(const Transform::Branch& branch, const std::string& name,
              std::array<re2::StringPiece, 10>& groups) {
  const int count = std::min(10, branch.find->NumberOfCapturingGroups() + 1);
  for (size_t start = 0; start <= name.size();) {
    if (!branch.find->Match(name, start, name.size(), RE2::UNANCHORED, groups.data(), count)) {
      return false;
    }
    const auto begin = static_cast<size_t>(groups[0].data() - name.data());
    const auto fits_none = [](const std::vector<std::unique_ptr<RE2>>& patterns,
                              const std::string& text) {
      return std::none_of(patterns.begin(), patterns.end(),
                          [&](const auto& pattern) { return RE2::PartialMatch(text, *pattern); });
    };
    if (fits_none(branch.not_behind, name.substr(0, begin)) &&
        fits_none(branch.not_ahead, name.substr(begin + groups[0].size()))) {
      return true;
    }
    start = begin + 1;
  }
  return false;
}

// WeightTransform.rename_source_key. `guard_seen`: of a group, whether its first pattern was.
std::optional<Match> renamed(const Transform& transform, const std::string& name,
                             bool* guard_seen) {
  std::string prefix;
  if (transform.scope) {
    const std::string scope = with_dot(*transform.scope);
    const std::string whole = with_dot(transform.base) + scope;
    if (name.starts_with(whole)) {
      prefix = whole;
    } else if (name.starts_with(scope)) {
      prefix = scope;
    } else {
      return std::nullopt;
    }
  }
  std::string rest = name.substr(prefix.size());
  const Transform::Branch* first = nullptr;
  std::array<re2::StringPiece, 10> groups;
  for (const Transform::Branch& branch : transform.branches) {
    std::array<re2::StringPiece, 10> found;
    if (!is_found(branch, rest, found)) continue;
    if (first == nullptr || found[0].data() < groups[0].data()) {
      first = &branch;
      groups = found;
    }
  }
  if (first == nullptr) return std::nullopt;
  if (transform.is_group) {
    if (first->source == 0) *guard_seen = true;
    if (!*guard_seen) return std::nullopt;
  }
  const std::string& target =
      transform.to[transform.is_group ? std::min(first->source, transform.to.size() - 1) : 0];
  const std::string found(groups[0].data(), groups[0].size());
  // str.replace(found, ..., 1): where that text comes first.
  rest.replace(rest.find(found), found.size(), filled_in(target, groups));
  return Match{first->source, prefix + rest};
}

// WeightTransform.__init__: "*." is any part of a name, and a pattern ends where a word does.
std::string pattern_of(const std::string& source) {
  std::string pattern;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source.compare(i, 2, "*.") == 0) {
      pattern += ".*\\.";
      ++i;
    } else {
      pattern += source[i];
    }
  }
  const char last = pattern.empty() ? '.' : pattern.back();
  const bool is_word =
      (last >= 'a' && last <= 'z') || (last >= 'A' && last <= 'Z') || (last >= '0' && last <= '9');
  return is_word ? pattern + "\\b" : pattern;
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

bool number_is_less(std::string_view a, std::string_view b) {
  a.remove_prefix(std::min(a.find_first_not_of('0'), a.size()));
  b.remove_prefix(std::min(b.find_first_not_of('0'), b.size()));
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

// core_model_loading.dot_natural_key, as far as lists of modules need it: numbers by their size.
bool comes_before(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    const std::string_view part = a.substr(0, a.find('.'));
    const std::string_view other = b.substr(0, b.find('.'));
    if (part != other) {
      if (is_number(part) && is_number(other)) return number_is_less(part, other);
      if (is_number(part) != is_number(other)) return is_number(part);
      return part < other;
    }
    a.remove_prefix(std::min(part.size() + 1, a.size()));
    b.remove_prefix(std::min(other.size() + 1, b.size()));
  }
  return a.size() < b.size();
}

std::vector<size_t> natural_order(std::span<const ModelTensor> tensors) {
  std::vector<size_t> order(tensors.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return comes_before(tensors[a].name, tensors[b].name);
  });
  return order;
}

// Tensors that one converter makes others of.
struct Conversion {
  const Transform* transform = nullptr;             // nullptr: nothing but a name
  std::string name;                                 // with the first target in it
  std::map<size_t, std::vector<size_t>> collected;  // by pattern
  std::vector<size_t> inputs;
};

// WeightConverter.convert: full names of what the operations gave.
std::vector<std::string> full_names(const Conversion& conversion, const Collected& results) {
  std::string name = conversion.name;
  for (size_t star = name.find("*."); star != name.npos; star = name.find("*.")) {
    name.replace(star, 1, "0");
  }
  for (const auto& [target, tensors] : results) {
    const size_t at = name.find(target);
    if (at == name.npos) continue;
    std::vector<std::string> names;
    for (const auto& [each, ignored] : results) {
      names.push_back(name.substr(0, at) + each + name.substr(at + target.size()));
    }
    return names;
  }
  throw UnsupportedError({}, "the rule of its name gives it none");
}

}  // namespace

std::string_view transformers_of_rules() {
  static const std::string release = release_in(hub_rules_text());
  return release;
}

struct HubNames::Impl {
  explicit Impl(std::string_view all_rules) : file(all_rules) {}

  std::string_view file;  // rules.jsonl
  Known known = Known::no;
  std::string model;
  std::string release;
  std::string why_not;
  Json config;
  std::vector<std::string> tops;
  std::vector<std::string> nested;  // "a.b" where both are among `tops`
  // In the order in which they are applied: converters before or behind the renamings.
  std::vector<Transform> save;
  std::vector<Transform> load;
  bool can_load = true;  // RE2 knows all patterns
  // Loading tells some names only by what the module has.
  bool one_way = false;

  bool is_top(const std::string& name) const {
    return std::find(tops.begin(), tops.end(), name) != tops.end();
  }
  void read(std::string_view text, bool any_release);
  void read_model(const Json& row);
  void add_rules(const Json& rules, const std::optional<std::string>& scope,
                 const std::string& base);
  std::optional<Transform> transform_of(const Json& way, const std::optional<std::string>& scope,
                                        const std::string& base) const;
  std::vector<std::pair<std::optional<std::string>, std::string>> uses_of(const Json& row) const;

  std::string after_renamings(const std::vector<Transform>& transforms, std::string name,
                              std::vector<char>& guards) const;
  std::vector<RenamedTensor> apply(const std::vector<Transform>& transforms, bool saving,
                                   std::span<const ModelTensor> tensors,
                                   const ShapeOf& shape_of) const;
  std::vector<RenamedTensor> results_of(const Conversion& conversion,
                                        std::span<const ModelTensor> tensors,
                                        const ShapeOf& shape_of) const;
};

namespace {

// The release is below 5, or unknown.
bool is_older(const std::string& release) {
  int major = 0;
  const auto [end, failed] =
      std::from_chars(release.data(), release.data() + release.size(), major);
  return failed != std::errc() || major < kFirstRelease;
}

std::string class_in(const Json& config) {
  const auto found = config.find("architectures");
  if (found == config.end() || !found->is_array() || found->size() != 1) return {};
  return (*found)[0].is_string() ? (*found)[0].get<std::string>() : std::string();
}

}  // namespace

void HubNames::Impl::read(std::string_view text, bool any_release) {
  config = parse_json(text);
  if (!config.is_object()) {
    why_not = "config.json is not a JSON object";
    return;
  }
  model = class_in(config);
  if (model.empty()) {
    why_not = "config.json names no class of model (architectures)";
    return;
  }
  release = text_at(config, "transformers_version");
  if (!any_release && is_older(release)) {
    known = Known::older;
    return;
  }
  if (config.contains("auto_map")) {
    why_not = printable(model) + " brings its own code (auto_map in config.json)";
    return;
  }
  const Json row = row_of(file, "model", model);
  if (row.is_object()) {
    read_model(row);
  } else if (row.is_null()) {
    known = Known::same;
  } else {
    why_not = "no rules are known for the hub's names of " + printable(model);
    known = Known::unknown;
  }
}

// Parts that are models of their own may be of different types than by default: these have their
// own rules.
std::vector<std::pair<std::optional<std::string>, std::string>> HubNames::Impl::uses_of(
    const Json& row) const {
  std::vector<std::pair<std::optional<std::string>, std::string>> uses;
  for (const Json& use : row["uses"]) {
    uses.emplace_back(use[0].is_null() ? std::nullopt : std::optional(use[0].get<std::string>()),
                      use[1].get<std::string>());
  }
  const auto parts = row.find("parts");
  if (parts == row.end()) return uses;
  const std::string base = text_at(row, "base");
  for (const auto& [key, part] : parts->items()) {
    const auto own = config.find(key);
    if (own == config.end() || !own->is_object()) continue;
    const std::string type = text_at(*own, "model_type");
    if (type.empty() || type == part[1].get<std::string>()) continue;
    std::string scope = part[0].get<std::string>();
    if (!base.empty() && scope.starts_with(base)) scope.erase(0, base.size());
    if (scope.starts_with(".")) scope.erase(0, 1);
    std::erase_if(uses, [&](const auto& use) {
      return use.first && (*use.first == scope || use.first->starts_with(scope + "."));
    });
    const Json bare = row_of(file, "base", type);
    if (!bare.is_string()) {
      throw UnsupportedError({}, "no rules are known for the hub's names of the type '" +
                                     printable(type) + "' (" + key + ")");
    }
    const Json other = row_of(file, "model", bare.get<std::string>());
    if (!other.is_object()) continue;  // its names are the same
    for (const Json& use : other["uses"]) {
      const std::string below = use[0].is_null() ? std::string() : use[0].get<std::string>();
      uses.emplace_back(below.empty() ? scope : scope + "." + below, use[1].get<std::string>());
    }
  }
  return uses;
}

void HubNames::Impl::read_model(const Json& row) {
  tops = row["tops"].get<std::vector<std::string>>();
  one_way = row.contains("one_way");
  if (row.contains("nested")) nested = row["nested"].get<std::vector<std::string>>();
  const std::string base = text_at(row, "base");
  try {
    for (const auto& [scope, key] : uses_of(row)) {
      Json rules = row_of(file, "rules", key);
      if (rules.is_string()) rules = row_of(file, "rules", rules.get<std::string>());
      add_rules(rules, scope, base);
    }
  } catch (const UnsupportedError& error) {
    why_not = error.message();
    return;
  }
  known = save.empty() ? Known::same : Known::rules;
  // All of them the other way round: those of parts come first.
  std::reverse(save.begin(), save.end());
}

void HubNames::Impl::add_rules(const Json& rules, const std::optional<std::string>& scope,
                               const std::string& base) {
  for (const Json& rule : rules) {
    if (rule.contains("unknown")) {
      throw UnsupportedError({}, "the names of " + model + " change by a rule that is not known (" +
                                     text_at(rule, "unknown") + ")");
    }
    std::optional<Transform> saving = transform_of(rule["save"], scope, base);
    if (!saving)
      throw UnsupportedError({}, "the names of " + model + " change by unknown patterns");
    saving->is_group = rule.contains("group");
    std::optional<Transform> loading = transform_of(rule["load"], scope, base);
    save.push_back(std::move(*saving));
    if (!loading) {
      can_load = false;
      continue;
    }
    loading->is_group = rule.contains("group");
    load.push_back(std::move(*loading));
  }
}

std::optional<Transform> HubNames::Impl::transform_of(const Json& way,
                                                      const std::optional<std::string>& scope,
                                                      const std::string& base) const {
  Transform transform{.scope = scope,
                      .base = base,
                      .branches = {},
                      .from = way["from"].get<std::vector<std::string>>(),
                      .to = way["to"].get<std::vector<std::string>>(),
                      .operations = way.contains("do") ? way["do"] : Json::array()};
  // The longest first, since a name fits the first of its branches that it fits at all.
  std::vector<size_t> order(transform.from.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return transform.from[a].size() > transform.from[b].size();
  });
  for (const size_t i : order) {
    Transform::Branch branch{
        .source = i,
        .find = compile_quietly(way.contains("find") ? way["find"].get<std::string>()
                                                     : pattern_of(transform.from[i])),
        .not_behind = {},
        .not_ahead = {}};
    bool ok = branch.find->ok();
    const auto compile = [&](const char* key, const char* begin, const char* end) {
      std::vector<std::unique_ptr<RE2>> patterns;
      if (!way.contains(key)) return patterns;
      for (const Json& each : way[key]) {
        patterns.push_back(compile_quietly(begin + each.get<std::string>() + end));
        ok = ok && patterns.back()->ok();
      }
      return patterns;
    };
    branch.not_behind = compile("not_behind", "(?:", ")$");
    branch.not_ahead = compile("not_ahead", "^(?:", ")");
    if (!ok) return std::nullopt;
    transform.branches.push_back(std::move(branch));
  }
  return transform;
}

std::string HubNames::Impl::after_renamings(const std::vector<Transform>& transforms,
                                            std::string name, std::vector<char>& guards) const {
  for (size_t i = 0; i < transforms.size(); ++i) {
    if (transforms[i].is_converter()) continue;
    bool seen = guards[i] != 0;
    std::optional<Match> match = renamed(transforms[i], name, &seen);
    guards[i] = seen ? 1 : 0;
    if (match) name = std::move(match->name);
  }
  return name;
}

std::vector<RenamedTensor> HubNames::Impl::results_of(const Conversion& conversion,
                                                      std::span<const ModelTensor> tensors,
                                                      const ShapeOf& shape_of) const {
  const Transform& transform = *conversion.transform;
  Collected collected;
  for (const auto& [pattern, inputs] : conversion.collected) {
    std::vector<TensorSource> sources;
    for (const size_t i : inputs) sources.push_back(tensors[i].source);
    collected.emplace_back(transform.from[pattern], std::move(sources));
  }
  ConversionContext context{.from = transform.from, .to = transform.to, .config = config};
  if (shape_of) {
    context.module_shape = shape_of(conversion.name);
    const size_t at = conversion.name.find(transform.to.front());
    for (const std::string& target : transform.to) {
      if (at == std::string::npos) break;
      context.module_shapes.push_back(
          shape_of(conversion.name.substr(0, at) + target +
                   conversion.name.substr(at + transform.to.front().size())));
    }
  }
  for (const Json& operation : transform.operations) {
    collected = convert(operation, std::move(collected), context);
  }
  std::vector<std::string> names = full_names(conversion, collected);
  std::vector<RenamedTensor> results;
  for (size_t i = 0; i < collected.size(); ++i) {
    if (collected[i].second.size() != 1) {
      throw UnsupportedError(
          {}, "the rule of its name leaves " + counted(collected[i].second.size(), "tensor"));
    }
    results.push_back({std::move(names[i]), collected[i].second.front(), conversion.inputs, i});
  }
  return results;
}

std::vector<RenamedTensor> HubNames::Impl::apply(const std::vector<Transform>& transforms,
                                                 bool saving, std::span<const ModelTensor> tensors,
                                                 const ShapeOf& shape_of) const {
  std::vector<char> guards(transforms.size());
  std::vector<Conversion> conversions;
  KeyedMap<std::string, size_t> by_name;
  // Patterns that a list of modules gives several tensors each collect these by their numbers.
  for (const size_t i : natural_order(tensors)) {
    std::string name = tensors[i].name;
    if (!saving) name = after_renamings(transforms, std::move(name), guards);
    const Transform* converter = nullptr;
    size_t pattern = 0;
    for (const Transform& transform : transforms) {
      if (!transform.is_converter()) continue;
      if (std::optional<Match> match = renamed(transform, name, nullptr)) {
        converter = &transform;
        pattern = match->source;
        name = std::move(match->name);
        break;
      }
    }
    // convert_and_load_state_dict_in_model: a name that the module has already.
    if (!saving && shape_of && shape_of(name) == nullptr && shape_of(tensors[i].name) != nullptr) {
      name = tensors[i].name;
      converter = nullptr;
    }
    if (converter == nullptr && saving) {
      name = after_renamings(transforms, std::move(name), guards);
    }
    const auto [found, is_new] = by_name.emplace(name, conversions.size());
    if (is_new) conversions.push_back({.transform = converter, .name = name});
    Conversion& conversion = conversions[found->second];
    if (!is_new && (converter == nullptr || conversion.transform == nullptr)) {
      throw UnsupportedError({.tensor = tensors[i].name},
                             "would be called '" + name + "', as '" +
                                 tensors[conversion.inputs.front()].name + "' is");
    }
    conversion.collected[pattern].push_back(i);
    conversion.inputs.push_back(i);
  }

  std::vector<RenamedTensor> results;
  for (Conversion& conversion : conversions) {
    if (conversion.transform == nullptr) {
      const size_t input = conversion.inputs.front();
      results.push_back({std::move(conversion.name), tensors[input].source, {input}, 0});
      continue;
    }
    const std::string& first = tensors[conversion.inputs.front()].name;
    std::vector<RenamedTensor> made =
        in_context({.tensor = first}, [&] { return results_of(conversion, tensors, shape_of); });
    for (RenamedTensor& each : made) {
      if (saving) each.name = after_renamings(transforms, std::move(each.name), guards);
      std::sort(each.inputs.begin(), each.inputs.end());
      results.push_back(std::move(each));
    }
    if (results.size() > tensors.size() + kMostMore) {
      throw UnsupportedError({.tensor = first}, "is one of too many that become several");
    }
  }
  KeyedMap<std::string, size_t> taken;
  for (const RenamedTensor& each : results) {
    const auto [found, is_new] = taken.emplace(each.name, each.inputs.front());
    if (is_new) continue;
    throw UnsupportedError(
        {.tensor = tensors[each.inputs.front()].name},
        "would be called '" + each.name + "', as '" + tensors[found->second].name + "' is");
  }
  std::stable_sort(results.begin(), results.end(),
                   [](const RenamedTensor& a, const RenamedTensor& b) {
                     return a.inputs.front() < b.inputs.front();
                   });
  return results;
}

HubNames::HubNames(std::string_view config, bool any_release)
    : HubNames(config, any_release, hub_rules_text()) {}

HubNames::HubNames(std::string_view config, bool any_release, std::string_view rules) {
  auto impl = std::make_unique<Impl>(rules);
  impl->read(config, any_release);
  impl_ = std::move(impl);
}

HubNames::~HubNames() = default;
HubNames::HubNames(HubNames&&) noexcept = default;
HubNames& HubNames::operator=(HubNames&&) noexcept = default;

HubNames::Known HubNames::known() const {
  return impl_->known;
}
const std::string& HubNames::model() const {
  return impl_->model;
}
const std::string& HubNames::release() const {
  return impl_->release;
}
const std::string& HubNames::why_not() const {
  return impl_->why_not;
}

const std::string* HubNames::foreign_name(std::span<const ModelTensor> tensors) const {
  for (const ModelTensor& tensor : tensors) {
    const size_t dot = std::min(tensor.name.find('.'), tensor.name.size());
    const std::string top = tensor.name.substr(0, dot);
    if (!impl_->is_top(top)) return &tensor.name;
    // "model.lm_head": of a model in another's `model`.
    const std::string both = tensor.name.substr(0, tensor.name.find('.', dot + 1));
    if (both.size() > dot && impl_->is_top(both.substr(dot + 1)) &&
        std::find(impl_->nested.begin(), impl_->nested.end(), both) == impl_->nested.end()) {
      return &tensor.name;
    }
  }
  return nullptr;
}

std::vector<RenamedTensor> HubNames::to_hub(std::span<const ModelTensor> tensors) const {
  return impl_->apply(impl_->save, true, tensors, {});
}

std::optional<std::vector<RenamedTensor>> HubNames::to_module(std::span<const ModelTensor> tensors,
                                                              const ShapeOf& shape_of) const {
  if (!impl_->can_load || (impl_->one_way && !shape_of)) return std::nullopt;
  std::vector<RenamedTensor> results = impl_->apply(impl_->load, false, tensors, shape_of);
  std::vector<ModelTensor> modules;
  modules.reserve(results.size());
  for (const RenamedTensor& each : results) modules.push_back({each.name, each.source});
  KeyedSet<std::string> names;
  for (const ModelTensor& tensor : tensors) names.insert(tensor.name);
  const std::vector<RenamedTensor> back = to_hub(modules);
  const bool same = back.size() == tensors.size() &&
                    std::all_of(back.begin(), back.end(), [&](const RenamedTensor& each) {
                      return names.contains(each.name);
                    });
  if (!same) return std::nullopt;
  return results;
}

const std::string* fused_experts(std::span<const ModelTensor> tensors) {
  for (const ModelTensor& tensor : tensors) {
    const std::string_view name = tensor.name;
    if (name.ends_with(".experts.gate_up_proj")) return &tensor.name;
  }
  return nullptr;
}

}  // namespace dsckpt
