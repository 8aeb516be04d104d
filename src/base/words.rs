//! Enums whose variants have a name or a sentence for people, or a number on the wire, each in one
//! place.
#![forbid(unsafe_code)]

/// Declares an enum with a name for each variant, which its documentation has too.
macro_rules! named {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$doc:meta])* $variant:ident = $words:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Copy, Clone, Eq, PartialEq, Debug)]
        $vis enum $name { $($(#[$doc])* #[doc = concat!("(", $words, ")")] $variant,)+ }

        impl $name {
            /// All of them.
            pub const ALL: [$name; [$($words),+].len()] = [$($name::$variant),+];

            /// For people.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $words,)+ }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

/// Declares an enum of numbers that a peer says. Of those that mean nothing here, `from_wire` gives
/// `None`, or what stands behind `else`.
macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident: $number:ident $(else $other:ident)? {
        $($(#[$doc:meta])* $variant:ident = $value:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Copy, Clone, Eq, PartialEq, Debug)]
        #[repr($number)]
        pub enum $name { $($(#[$doc])* $variant = $value,)+ }

        impl $name {
            $crate::base::words::numbered!(@read $name $number [$($other)?] $($variant $value)+);
        }
    };
    (@read $name:ident $number:ident [] $($variant:ident $value:literal)+) => {
        /// The one of a number.
        #[inline]
        pub const fn from_wire(number: $number) -> Option<$name> {
            match number { $($value => Some($name::$variant),)+ _ => None }
        }
    };
    (@read $name:ident $number:ident [$other:ident] $($variant:ident $value:literal)+) => {
        #[doc = concat!("The one of a number; unknown ones are `", stringify!($other), "`.")]
        pub const fn from_wire(number: $number) -> $name {
            match number { $($value => $name::$variant,)+ _ => $name::$other }
        }
    };
}

/// Declares an enum with the sentence of each variant, which its documentation has too, and which
/// may name the variant's fields. Where that is not enough, `|f|` writes it.
macro_rules! said {
    ($(#[$meta:meta])* $vis:vis enum $name:ident $(<$life:lifetime>)? { $(
        $(#[$doc:meta])* $variant:ident
            $(($($field:ident: $ty:ty),+))?
            $({ $($(#[$of:meta])* $named:ident: $nty:ty),+ $(,)? })?
            $(= $number:literal)? => $($words:literal)? $(|$f:ident| $say:expr)?,
    )+ }) => {
        $(#[$meta])*
        $vis enum $name $(<$life>)? { $(
            $(#[$doc])* $(#[doc = concat!("(", $words, ")")])?
            $variant $(($($ty),+))? $({ $($(#[$of])* $named: $nty),+ })? $(= $number)?,
        )+ }

        impl $(<$life>)? core::fmt::Display for $name $(<$life>)? {
            #[allow(unused_variables)] // of fields that no sentence names
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self { $(
                    $name::$variant $(($($field),+))? $({ $($named),+ })? => {
                        $(write!(f, $words))?
                        $({ let $f = f; $say })?
                    }
                )+ }
            }
        }
    };
}

/// Makes variants of an enum out of what they hold.
macro_rules! wraps {
    ($name:ident: $($variant:ident($held:ty)),+) => {
        $(impl From<$held> for $name {
            fn from(held: $held) -> $name {
                $name::$variant(held)
            }
        })+
    };
}

pub(crate) use {named, numbered, said, wraps};
