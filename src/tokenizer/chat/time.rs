//! `strftime_now`: templates ask for today's date.

use crate::clock::SystemTime;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Now (UTC) in the form that `format` asks for.
pub fn strftime_now(format: &str) -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    strftime(format, since.as_secs())
}

/// The moment `seconds` after 1970-01-01 (UTC), in C's notation. A directive that is not here stays as it is.
fn strftime(format: &str, seconds: u64) -> String {
    let (days, of_day) = (seconds / 86400, seconds % 86400);
    let (year, month, day) = civil(days);
    let month_name = MONTHS[month as usize - 1];
    let week_day = DAYS[((days + 4) % 7) as usize];
    let hour = of_day / 3600;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(char) = chars.next() {
        if char != '%' {
            out.push(char);
            continue;
        }
        match chars.next() {
            Some('Y') => out += &year.to_string(),
            Some('y') => out += &format!("{:02}", year % 100),
            Some('m') => out += &format!("{month:02}"),
            Some('B') => out += month_name,
            Some('b' | 'h') => out += &month_name[..3],
            Some('d') => out += &format!("{day:02}"),
            Some('e') => out += &format!("{day:2}"),
            Some('A') => out += week_day,
            Some('a') => out += &week_day[..3],
            Some('H') => out += &format!("{hour:02}"),
            Some('I') => out += &format!("{:02}", (hour + 11) % 12 + 1),
            Some('p') => out += if hour < 12 { "AM" } else { "PM" },
            Some('M') => out += &format!("{:02}", of_day / 60 % 60),
            Some('S') => out += &format!("{:02}", of_day % 60),
            Some('F') => out += &format!("{year}-{month:02}-{day:02}"),
            Some('T') => out += &format!("{hour:02}:{:02}:{:02}", of_day / 60 % 60, of_day % 60),
            Some('Z') => out += "UTC",
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Year, month and day of the Gregorian calendar, from days since 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64) {
    // Counted from 0000-03-01, so that the leap day ends a year, and an era is 400 years of 146097 days.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        assert_eq!(strftime("%F %T", 0), "1970-01-01 00:00:00");
        assert_eq!(strftime("%d %b %Y", 951_782_400), "29 Feb 2000");
        assert_eq!(
            strftime("%A, %e. %B %Y, %I:%M %p", 1_795_264_530),
            "Saturday, 21. November 2026, 12:35 PM"
        );
        assert_eq!(strftime("100%% %q %", 0), "100% %q %");
    }
}
