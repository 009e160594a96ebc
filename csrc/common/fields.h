// The table of a struct that Python fills: the name of every member, beside the struct, once.
//
//     template <class T>
//     struct Chunk {
//         T* S;
//         std::int64_t rows;
//         static constexpr auto fields() {
//             return std::tuple{field("S", &Chunk::S), field("rows", &Chunk::rows)};
//         }
//     };
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace robustdml {

template <class Member>
struct Field {
    const char* name;  // of the keyword argument
    Member member;     // pointer to member
    bool optional;     // zero where Python leaves it out
};

template <class Member>
constexpr Field<Member> field(const char* name, Member member) {
    return {name, member, false};
}

template <class Member>
constexpr Field<Member> optional_field(const char* name, Member member) {
    return {name, member, true};
}

// Converts to any type, to test at compile time whether a struct has one more member.
struct Anything {
    template <class T>
    constexpr operator T() const;
};

template <class Struct, class Values, class = void>
constexpr bool kTakes = false;
template <class Struct, class... Values>
constexpr bool
    kTakes<Struct, std::tuple<Values...>, std::void_t<decltype(Struct{std::declval<Values>()...})>> = true;

// Members of an aggregate, for a check that its table has them all.
template <class Struct, class... Values>
constexpr std::size_t member_count() {
    if constexpr (kTakes<Struct, std::tuple<Values..., Anything>>)
        return member_count<Struct, Values..., Anything>();
    else
        return sizeof...(Values);
}

}  // namespace robustdml
